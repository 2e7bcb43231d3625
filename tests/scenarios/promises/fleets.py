"""The fleets that several scenarios play with: what follows the clusters and pools in a fleet file.

Pool `gpu` has 4 nodes of 8 GPUs, so a job of 8 GPUs holds a node and four such jobs hold everything.
"""

TWO_TEAMS = """
teams:
  research: { share: 60, guarantee: { gpu: 16 }, borrow: { gpu: 16 }, members: [alice, carol] }
  product: { share: 40, guarantee: { gpu: 16 }, borrow: { gpu: 16 }, members: [bob] }
"""

FAMILY = """
teams:
  research:
    guarantee: { gpu: 16 }
    borrow: { gpu: 16 }
    teams:
      nlp: { guarantee: { gpu: 8 }, members: [alice] }
      vision: { members: [carol] }
  product: { guarantee: { gpu: 16 }, borrow: { gpu: 16 }, members: [bob] }
"""
