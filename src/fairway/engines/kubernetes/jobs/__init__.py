"""Jobs on Kubernetes and Kueue: orders made into Jobs, and every Job told in Fairway's words."""
