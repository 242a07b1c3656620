-- Tell the listeners of a channel: with `sharded` those of its shard only, if the server and the user can.
-- A user who may not publish is still answered: other processes hear the news with their next answer.

local function tell(channel, text, sharded)
  if sharded then
    local told = redis.pcall('SPUBLISH', channel, text)
    if type(told) ~= 'table' or not told.err then
      return
    end
  end
  redis.pcall('PUBLISH', channel, text)
end

