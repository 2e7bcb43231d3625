"""Jobs on Kubernetes and Kueue: submit them as Jobs, and mirror every Job and its workload."""
