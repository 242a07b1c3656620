-- What a pool remembers of refusals: the decisions of pool/episode.py, step by step. Comes after integers.lua and
-- state.lua.

local function next_stamp(pool)
  pool.stamp = exact(max(pool.stamp + 1, pool.now))
  return pool.stamp
end

local function signal_window(pool, duration, manner, who, now)
  local window, later = pool.window, true
  if duration == 0 or (duration == -2 and window[GENTLE] == 0 and window[PROBING] == 0) then
    return
  end
  local probing = duration > 0 and manner == 2 and 1 or 0
  if duration < 0 then
    window[UNTIL] = min(window[UNTIL] or now, now)
  else
    local active = window[UNTIL] and now < window[UNTIL]
    window[GENTLE] = manner ~= 0 and (window[GENTLE] == 1 or not active) and 1 or 0
    later = now + duration > (window[UNTIL] or 0)
    if later then
      window[UNTIL] = exact(now + duration)
    end
  end
  if not later and probing == window[PROBING] then
    return
  end
  if probing == 0 then
    window[PROBER] = ''
  elseif window[PROBING] == 0 then
    window[PROBER] = who
  end
  window[PROBING] = probing
  window[GENERATION] = next_stamp(pool)
end

-- What this member is told of probes.
local function assign(pool, who, waiting, in_flight)
  local window = pool.window
  if window[PROBING] == 0 then
    return 0
  end
  local holder, busy = pool.members[window[PROBER]], false
  if window[PROBER] == who then
    busy = waiting > 0 or in_flight > 0
  else
    busy = holder and (holder[WAITING] > 0 or holder[IN_FLIGHT] > 0)
  end
  if not busy and waiting > 0 then
    window[PROBER] = who
  end
  return window[PROBER] == who and 1 or 2
end

-- Whether what a member has learned is heard.
local function hear_lesson(pool, taught, now)
  local lesson, version, cut = pool.lesson, taught[1], taught[3]
  if version ~= -1 and version ~= lesson[VERSION] and not (cut and taught[2] == lesson[EPISODE]) then
    return false
  end
  lesson[VERSION] = next_stamp(pool)
  if cut then
    lesson[EPISODE] = lesson[VERSION]
  end
  lesson[TOLD_AT], lesson[TEXT] = now, taught[4]
  return true
end

