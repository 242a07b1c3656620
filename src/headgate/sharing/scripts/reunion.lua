-- How members go by a pool again when they could not ask its store: the decisions of pool/reunion.py, step by step.
-- Comes after rates.lua and episode.lua.

-- The functions of this file: a script may not have more than 200 local variables.
local Reunion = {LATE = -2}
Reunion.GAP, Reunion.HUNG, Reunion.LONGEST = unpack(REUNION_TIMES)

function Reunion.begin_empty(pool, at)
  for _, rate in ipairs(pool.rates) do
    if rate[KIND] ~= STRICT then
      charge(rate, 0, exact(at + min(time_for(rate, most(rate)), NOT_KNOWN)), next_stamp(pool))
    end
  end
end

function Reunion.begin(pool, now, length)
  pool.reunion_until = exact(now + min(length, Reunion.LONGEST))
  for _, each in pairs(pool.present) do
    each[4] = 0
  end
  pool.called = next_stamp(pool)
end

-- When a member has asked again, if its callers wait for more and it can; else 0.
function Reunion.asks_by(question, ask_again_in, now)
  if ask_again_in == 0 or question.waiting == 0 or question.apart ~= 0 then
    return 0
  end
  return exact(now + max(ask_again_in, question.lease) + 2 * question.reach)
end

function Reunion.one_is_silent(pool, who, now)
  for name, each in pairs(pool.present) do
    if name ~= who and 0 < each[4] and each[4] < now and each[1] - PRESENT < pool.asked_from then
      return true
    end
  end
  return false
end

-- For how long from now on the member goes by its part.
function Reunion.reunite(pool, question, now)
  if pool.reunion_until > 0 and pool.reunion_until <= now then
    if pool.reunion_from > 0 then
      Reunion.begin_empty(pool, pool.reunion_until)
    end
    pool.reunion_from, pool.reunion_until = 0, 0
  end
  local apart = min(question.apart, Reunion.LONGEST)
  if now > pool.asked_until + Reunion.GAP then
    pool.asked_from = now
  end
  pool.asked_until = now
  local alone = pool.asked_from <= now - question.lost_for - question.reach
  if pool.reunion_until > 0 then
    if apart > 0 or apart == Reunion.LATE then
      pool.reunion_from = pool.reunion_from > 0 and pool.reunion_from or now
      pool.reunion_until = exact(max(pool.reunion_until, pool.reunion_from + apart))
    end
  elseif apart == Reunion.LATE or (apart > 0 and alone) then
    Reunion.begin_empty(pool, now)
  elseif apart > 0 then
    pool.reunion_from = now
    Reunion.begin(pool, now, apart)
  elseif apart == 0 and Reunion.one_is_silent(pool, question.member, now) then
    local farthest = question.reach
    for _, each in pairs(pool.members) do
      farthest = max(farthest, each[REACH])
    end
    Reunion.begin(pool, now, REUNION + Reunion.HUNG + 3 * farthest)
  end
  return max(0, pool.reunion_until - now)
end

