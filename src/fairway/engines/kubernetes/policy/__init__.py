"""A fleet's policy on Kubernetes and Kueue.

Pure: `translate` says which objects a fleet means, `quota`, `guards` and `objects` build them, `fields` turns
an object into flat fields and back, `kinds` names what of each kind is governed, `configuration` compares
Kueue's own settings, `importing` reads a policy people made by hand. At the edge: `finding`, `writing`,
`workloads` and `nudging` speak to the API server.
"""
