{{/* One pod: server or control. Called with root, part ("server"), serve ("api") and values of the part. */}}
{{- define "fairway.pod" -}}
{{- $root := .root -}}
{{- $values := $root.Values -}}
{{- $fleet := include "fairway.fleetMap" $root -}}
{{- $credentials := ternary $values.server.credentials $values.credentials (eq .part "server") -}}
metadata:
  labels:
    {{- include "fairway.labels" $root | nindent 4 }}
    app.kubernetes.io/component: {{ .part }}
  annotations:
    checksum/settings: {{ include (print $root.Template.BasePath "/settings.yaml") $root | sha256sum }}
    {{- with .own.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  serviceAccountName: {{ include (ternary "fairway.serverAccount" "fairway.serviceAccount" (eq .part "server")) $root }}
  {{- if eq .part "server" }}
  # It asks no cluster: control does that for it.
  automountServiceAccountToken: false
  {{- else }}
  automountServiceAccountToken: {{ include "fairway.usesCluster" $root }}
  {{- end }}
  enableServiceLinks: false
  terminationGracePeriodSeconds: {{ $values.terminationGracePeriodSeconds }}
  {{- if $values.hostNetwork }}
  hostNetwork: true
  dnsPolicy: ClusterFirstWithHostNet
  {{- end }}
  {{- with $values.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  {{- with $values.image.pullSecrets }}
  imagePullSecrets:
    {{- range . }}
    - name: {{ . }}
    {{- end }}
  {{- end }}
  securityContext:
    {{- include "fairway.podSecurity" $root | nindent 4 }}
  containers:
    - name: fairway
      image: {{ include "fairway.image" $root | quote }}
      imagePullPolicy: {{ $values.image.pullPolicy }}
      args:
        - server
        - --listen
        - "{{ $values.listenHost }}:{{ .own.port }}"
        {{- if $values.tls.existingSecret }}
        - --tls-cert=/etc/fairway/tls/tls.crt
        - --tls-key=/etc/fairway/tls/tls.key
        {{- else }}
        - --insecure-listen
        {{- end }}
        {{- if and $fleet (eq .part "control") }}
        - --file=/etc/fairway/fleet/{{ $values.fleet.key }}
        {{- end }}
      # Paths in a fleet file count from its folder, also where only the ledger's copy of it is read.
      workingDir: {{ if $fleet }}/etc/fairway/fleet{{ else }}/tmp{{ end }}
      env:
        - { name: FAIRWAY_SERVE, value: {{ .serve }} }
        {{- if eq .part "server" }}
        - { name: FAIRWAY_ENGINE_SERVER, value: {{ include "fairway.engineServer" $root | quote }} }
        {{- if and $values.tls.existingSecret $values.tls.caKey }}
        - { name: FAIRWAY_ENGINE_SERVER_CA, value: /etc/fairway/tls/{{ $values.tls.caKey }} }
        {{- end }}
        {{- end }}
        - { name: FAIRWAY_MIGRATE, value: "no" }
        - { name: FAIRWAY_CONFIG, value: /etc/fairway/settings/server.yaml }
        - { name: FAIRWAY_DATABASE_URL_FILE, value: /etc/fairway/database/{{ $values.database.key }} }
        - { name: FAIRWAY_STATE_DIR, value: /tmp/fairway }
        - { name: HOME, value: /tmp }
      ports:
        - { name: http, containerPort: {{ .own.port }}, protocol: TCP }
      startupProbe:
        httpGet: { path: /healthz, port: http, scheme: {{ .scheme }}{{ if $values.hostNetwork }}, host: {{ $values.listenHost }}{{ end }} }
        periodSeconds: 2
        timeoutSeconds: 3
        failureThreshold: 60
      livenessProbe:
        httpGet: { path: /healthz, port: http, scheme: {{ .scheme }}{{ if $values.hostNetwork }}, host: {{ $values.listenHost }}{{ end }} }
        periodSeconds: 10
        timeoutSeconds: 5
        failureThreshold: 6
      readinessProbe:
        httpGet: { path: /readyz, port: http, scheme: {{ .scheme }}{{ if $values.hostNetwork }}, host: {{ $values.listenHost }}{{ end }} }
        periodSeconds: 5
        timeoutSeconds: 5
        failureThreshold: 3
      {{- if and $values.preStopSeconds (eq .part "server") }}
      lifecycle:
        preStop: { sleep: { seconds: {{ $values.preStopSeconds }} } }
      {{- end }}
      resources:
        {{- toYaml .own.resources | nindent 8 }}
      securityContext:
        {{- include "fairway.containerSecurity" $root | nindent 8 }}
      volumeMounts:
        - { name: tmp, mountPath: /tmp }
        - { name: settings, mountPath: /etc/fairway/settings, readOnly: true }
        - { name: database, mountPath: /etc/fairway/database, readOnly: true }
        {{- if $values.tls.existingSecret }}
        - { name: tls, mountPath: /etc/fairway/tls, readOnly: true }
        {{- end }}
        {{- if $fleet }}
        - { name: fleet, mountPath: /etc/fairway/fleet, readOnly: true }
        {{- end }}
        {{- range $number, $secret := $credentials }}
        - { name: credentials-{{ $number }}, mountPath: /etc/fairway/credentials/{{ $secret }}, readOnly: true }
        {{- end }}
  volumes:
    - { name: tmp, emptyDir: { sizeLimit: 256Mi } }
    - { name: settings, configMap: { name: {{ include "fairway.fullname" $root }}-settings } }
    - { name: database, secret: { secretName: {{ $values.database.existingSecret }}, defaultMode: 288 } }
    {{- if $values.tls.existingSecret }}
    - { name: tls, secret: { secretName: {{ $values.tls.existingSecret }}, defaultMode: 288 } }
    {{- end }}
    {{- if $fleet }}
    - { name: fleet, configMap: { name: {{ $fleet }} } }
    {{- end }}
    {{- range $number, $secret := $credentials }}
    - { name: credentials-{{ $number }}, secret: { secretName: {{ $secret }}, defaultMode: 288 } }
    {{- end }}
  topologySpreadConstraints:
    {{- range list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
    - maxSkew: 1
      topologyKey: {{ . }}
      whenUnsatisfiable: ScheduleAnyway
      labelSelector:
        matchLabels:
          {{- include "fairway.selector" $root | nindent 10 }}
          app.kubernetes.io/component: {{ $.part }}
    {{- end }}
  {{- with .own.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .own.affinity }}
  affinity:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .own.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end }}

{{- define "fairway.deployment" -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ include "fairway.fullname" .root }}-{{ .part }}
  labels:
    {{- include "fairway.labels" .root | nindent 4 }}
    app.kubernetes.io/component: {{ .part }}
spec:
  replicas: {{ .own.replicas }}
  revisionHistoryLimit: 5
  strategy:
    {{- toYaml .root.Values.strategy | nindent 4 }}
  selector:
    matchLabels:
      {{- include "fairway.selector" .root | nindent 6 }}
      app.kubernetes.io/component: {{ .part }}
  template:
    {{- include "fairway.pod" . | nindent 4 }}
{{- end }}
