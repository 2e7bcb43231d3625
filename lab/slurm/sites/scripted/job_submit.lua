-- Site policy: a project in the comment, no root jobs, debug jobs go to their own QOS.
function slurm_job_submit(job, partitions, uid)
  if uid == 0 then
    slurm.log_user("root does not run jobs here")
    return slurm.ERROR
  end
  if job.partition == "debug" and job.qos == nil then
    job.qos = "debug"
  end
  if job.name == "forbidden" then
    slurm.log_user("jobs of this name are not allowed (site policy)")
    return slurm.ERROR
  end
  if job.admin_comment == nil then
    job.admin_comment = "site"
  end
  return slurm.SUCCESS
end

function slurm_job_modify(job, record, partitions, uid)
  if job.priority ~= nil and uid ~= 0 and job.priority ~= slurm.NO_VAL and job.priority > 0 then
    slurm.log_user("only administrators change priorities (site policy)")
    return slurm.ERROR
  end
  return slurm.SUCCESS
end
