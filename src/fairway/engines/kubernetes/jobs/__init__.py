"""Submit jobs as Kubernetes Jobs, and mirror every Job and its Workload."""
