-- Company policy: some names of jobs are not allowed.
function slurm_job_submit(job, partitions, uid)
  if job.name == "forbidden" then
    slurm.log_user("jobs of this name are not allowed (company policy)")
    return slurm.ERROR
  end
  return slurm.SUCCESS
end

function slurm_job_modify(job, record, partitions, uid)
  return slurm.SUCCESS
end
