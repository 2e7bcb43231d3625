"""Every kind of GPU workload on real Kubernetes, with its real controllers, under Fairway."""
