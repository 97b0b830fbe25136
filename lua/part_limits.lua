-- For scripts that grant: without limits in place (Redis was emptied) nothing can be decided; the caller puts them
-- there and asks again. Needs pool.
if #deployments < #REST then return redis.error_reply('NOLIMITS no limits in place for a deployment') end
