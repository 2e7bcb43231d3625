{{- define "fairway.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" }}
{{- end }}

{{- define "fairway.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" }}
{{- else if contains (include "fairway.name" .) .Release.Name }}
{{- .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "fairway.name" .) | trunc 40 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "fairway.selector" -}}
app.kubernetes.io/name: {{ include "fairway.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "fairway.labels" -}}
{{ include "fairway.selector" . }}
app.kubernetes.io/version: {{ .Values.image.tag | default .Chart.AppVersion | trunc 63 | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "fairway.serviceAccount" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "fairway.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{/* Where pods that only answer reach those that have the credentials of clusters. */}}
{{- define "fairway.engineServer" -}}
{{- $scheme := ternary "https" "http" (ne .Values.tls.existingSecret "") }}
{{- .Values.server.engineServer | default (printf "%s://%s-control:%v" $scheme (include "fairway.fullname" .) .Values.control.port) }}
{{- end }}

{{/* The account of pods that only answer: it may nothing, and its token is not mounted. */}}
{{- define "fairway.serverAccount" -}}
{{- if .Values.serviceAccount.create }}
{{- printf "%s-server" (include "fairway.serviceAccount" .) }}
{{- else }}
{{- default (include "fairway.serviceAccount" .) .Values.serviceAccount.serverName }}
{{- end }}
{{- end }}

{{- define "fairway.image" -}}
{{- if .Values.image.digest }}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest }}
{{- else }}
{{- printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) }}
{{- end }}
{{- end }}

{{- define "fairway.fleetMap" -}}
{{- if .Values.fleet.existingConfigMap }}
{{- .Values.fleet.existingConfigMap }}
{{- else if .Values.fleet.content }}
{{- printf "%s-fleet" (include "fairway.fullname" .) }}
{{- end }}
{{- end }}

{{- define "fairway.usesCluster" -}}
{{- if or .Values.rbac.observe .Values.rbac.govern .Values.rbac.run }}true{{ else }}false{{ end }}
{{- end }}

{{- define "fairway.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile: { type: RuntimeDefault }
{{- end }}

{{- define "fairway.containerSecurity" -}}
allowPrivilegeEscalation: false
privileged: false
readOnlyRootFilesystem: true
capabilities: { drop: [ALL] }
{{- end }}

{{- define "fairway.check" -}}
{{- if not .Values.database.existingSecret }}
{{- fail "database.existingSecret: name the secret that holds the database URL; it never stands in values" }}
{{- end }}
{{- if and (not .Values.tls.existingSecret) (not .Values.tls.plainHttp) }}
{{- fail "tls: name a secret (tls.existingSecret), or say that something in front speaks TLS (tls.plainHttp: true)" }}
{{- end }}
{{- end }}
