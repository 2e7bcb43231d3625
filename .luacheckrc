-- For src/fairway/engines/slurm/policy/job_submit.lua. Slurm's own Lua is 5.1 or newer.
std = "min"
-- Slurm defines the first; `fairway render slurm` writes the others before the script, as locals.
read_globals = {
  "INSTALLED", "PROBE_ANSWER", "PROBE_JOB",
  "slurm",
  "LENT", "LOW", "WAITING_URGENT", "SERVICE_USER", "INTERVENTION_JOB", "DEFAULT_WORD", "WORDS", "POOLS", "OWN_PARTITION",
  "TEAMS", "DEFAULT_TEAM", "OTHER_ACCOUNTS", "SITE_QOS", "MAX_WALL",
}
globals = { "slurm_job_submit", "slurm_job_modify" } -- Slurm calls these
unused_args = false -- Slurm says which arguments these take
