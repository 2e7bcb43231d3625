"""Govern Kubernetes and Kueue by the policy of a fleet.

Pure: `translate` makes the objects of a fleet, with `quota`, `users` and `admission_policies`; `fields`
flattens an object into fields and back; `advice` compares Kueue's configuration; `import_` reads a
hand-made policy. With I/O: `read`, `write`, `workloads` and `intervene` call the API server.
"""
