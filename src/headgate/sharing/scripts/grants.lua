-- What a pool grants to its members: the decisions of pool/grants.py, step by step. Comes after integers.lua,
-- state.lua, rates.lua, flow.lua, shift.lua and episode.lua.

-- Whether two lists have the same values.
local function same(a, b)
  for i = 1, max(#a, #b) do
    if a[i] ~= b[i] then
      return false
    end
  end
  return true
end

-- Whether the question was asked under rates of the same units.
local function knows_rates(pool, question)
  return #question.owed == #pool.rates and same(question.units, pool.units)
end

-- How many other members want more than they have.
local function others_short(pool, member, now)
  local many = 0
  for _, each in pairs(pool.members) do
    if each ~= member and each[SHORT_UNTIL] > now then
      many = many + 1
    end
  end
  return many
end

-- How long the calls of one turn take.
local function time_for_calls(pool)
  local calls = false
  for _, rate in ipairs(pool.rates) do
    local time = time_for(rate, CALLS)
    calls = calls and min(calls, time) or time
  end
  return calls or 0
end

-- For how long in advance batches are granted, if one turn of all members takes so long.
local function granted_ahead(turns)
  return min(max(turns, LEAST_AHEAD), MOST_AHEAD)
end

-- What members that are short may have had at most, if they divide that room. Nothing: the member is alone. If it is
-- late, they are those that have waited for this room, too.
local function level_of(pool, member, left, now, late)
  local served = {}
  for _, each in pairs(pool.members) do
    local waits = not late or (now - LATELY - each[REACH] < each[PUT_OFF] and each[PUT_OFF] <= now)
    if each ~= member and each[SHORT_UNTIL] > now and each[CONTENT] == 0 and waits then
      served[#served + 1] = each[SERVED]
    end
  end
  if #served == 0 then
    return nil
  end
  served[#served + 1] = member[SERVED]
  table.sort(served)
  left = max(1, left)
  for many, had in ipairs(served) do
    local level, following = exact(had + ceil(left / many)), served[many + 1]
    if not following or level <= following then
      return level
    end
    left = left - (following - had) * many
  end
end

-- For how long members may use what they are granted, if all that there are want a turn.
local function granted_for(pool)
  local reach, members, present, kept = 0, 0, 0, false
  for _, each in pairs(pool.members) do
    reach, members = max(reach, each[REACH]), members + 1
  end
  for _, rate in ipairs(pool.rates) do
    local tenth = rate[KIND] == STRICT and 0 or time_for(rate, floor(rate[BURST] / 10))
    kept = kept and min(kept, tenth) or tenth
  end
  for _ in pairs(pool.present) do
    present = present + 1
  end
  local ahead = granted_ahead(time_for_calls(pool) * max(present, members))
  return max(ahead + max(0, floor(ahead / 2) - (kept or 0)) + reach, pool.granted_until - pool.now)
end

-- How many that had their turn, too, come before this member if the rate would run dry.
local function before(pool, member, who, had, now)
  local many = 0
  for name, each in pairs(pool.members) do
    local served = each[SERVED]
    local sooner = served < member[SERVED] or (served == member[SERVED] and name < who)
    if had <= served and sooner and each[SHORT_UNTIL] > now and each[CONTENT] == 0 then
      many = many + 1
    end
  end
  return many
end

local function turns(pool, member, takes, now)
  local many, least, light = others_short(pool, member, now) + 1, false, false
  local reach, back, latest = member[REACH], 0, 0
  for _, each in pairs(pool.members) do
    if #each[FLOWS] == 0 then
      reach = max(reach, each[REACH])
      if each ~= member and each[SHORT_UNTIL] > now and (member[OWN_GAP] > 0 or each[OWN_GAP] == 0) then
        local served, content = each[SERVED], each[CONTENT] == 1
        light = content and (not least or served <= least) or (light and served >= least)
        least = least and min(least, served) or served
      end
    end
    back, latest = max(back, each[BACK]), max(latest, each[SERVED])
  end
  local ahead = granted_ahead(time_for_calls(pool) * many) + reach
  local turn, turn_of_far = max(takes, floor(ahead / many)), Shift.turn_apart(pool, member, many, now)
  local behind = max(max(turn, turn_of_far) * many, 2 * LEAST_AHEAD)
  for _, rate in ipairs(pool.rates) do
    behind = rate[KIND] == STRICT and max(behind, floor(rate[PERIOD] / many)) or behind
  end
  member[SERVED] = max(member[SERVED], latest - behind)
  turn = member[OWN_GAP] > 0 and max(turn, turn_of_far) or turn
  return ahead, least, light, turn, now + EARLY + back, turn_of_far
end

-- What `grant` does, for a member that is far from the store. Nothing: its calls are too heavy for that.
local function grant_flow(pool, member, who, batches, doubt, now)
  local starts, sizes, lump, rates, others = {}, {}, 0, pool.rates, {}
  for i, batch in ipairs(batches) do
    sizes[i] = 0
    for j, rate in ipairs(rates) do
      sizes[i] = max(sizes[i], time_for(rate, batch[j]))
    end
    lump = max(lump, sizes[i])
  end
  local ahead = turns(pool, member, lump, now)
  local many, lumps = others_short(pool, member, now) + 1, lump
  for _, each in pairs(pool.members) do
    if each ~= member and #each[FLOWS] > 0 then
      others[#others + 1] = each
      lumps = lumps + each[LUMP]
    end
  end
  local fits, present = 0, 1
  for name in pairs(pool.present) do
    present = present + (name ~= who and 1 or 0)
  end
  lumps = max(lumps, lump * present)
  for _, rate in ipairs(rates) do
    if lumps > time_for(rate, most(rate)) then
      return nil
    end
    fits = max(fits, fits_at(rate, 0, now, Flow.together(pool, lump)))
  end
  local more_from = Flow.beside(Flow.kept_from_now(pool), fits, now)
  local begins, share, last, flows = now + member[BACK], 0, 0, member[FLOWS]
  if #flows > 0 then
    begins = max(begins, member[LAST_START])
    share = floor(ALL / many)
    share = max(floor(share / 2), min(share, ALL - Flow.kept_for_all(others, begins)))
    last = flows[#flows][2]
    if #flows > 1 then
      share = max(share, last)
    end
  else
    member[LUMP] = 0
    begins = max(begins, more_from)
    share = floor(ALL / max(many, present))
    last = share
  end
  share = max(1, min(share, present == 1 and ALL or ALL - floor(ALL / MOST_LONGER)))
  last = max(1, last)
  begins = Flow.room_from(others, share, begins)
  if begins > now + 2 * ahead then
    member[SHORT_UNTIL] = exact(begins + member[REACH] + GRACE)
    return starts, max(SOONEST, begins - 2 * ahead - now)
  end
  local at = begins
  for i, batch in ipairs(batches) do
    if at > max(now + ahead, begins + floor(ahead / 2)) then
      break
    end
    at = exact(at + rounded_up(sizes[i], ALL, at >= more_from and share or min(share, last)))
    next_stamp(pool)
    for j, rate in ipairs(rates) do
      tell_taken(rate, batch[j], at, doubt)
    end
    member[SERVED] = exact(member[SERVED] + sizes[i])
    starts[#starts + 1] = at
  end
  share = at < more_from and min(share, last) or share
  Flow.keep(member, share, begins, exact(at + doubt), now)
  member[LUMP] = max(member[LUMP], lump)
  member[LAST_START] = at
  member[PUT_OFF] = 0
  member[EXPIRES] = max(member[EXPIRES], at + doubt)
  member[SHORT_UNTIL] = exact(at + member[REACH] + GRACE)
  return starts, #starts == #batches and 0 or max(SOONEST, at - ahead - now)
end

local function grant(pool, member, question, now)
  local starts, rates, batches, until_ = {}, pool.rates, question.batches, pool.window[UNTIL]
  if #batches == 0 or not knows_rates(pool, question) then
    return starts, 0
  end
  local granted_after = max(pool.grants_from, pool.reunion_until)
  if now < granted_after then
    return starts, granted_after - now
  end
  if question.waits_for_window and until_ and until_ > now then
    return starts, until_ - now
  end
  if pool.window[PROBING] == 1 then
    if pool.window[PROBER] ~= question.member then
      return starts, AGAIN
    end
    batches = {batches[1]}
  end
  local doubt, gap = exact(question.doubt), 0
  local far = Flow.is_far(rates, doubt, batches)
  if far and doubt > 2 * question.reach + STALE then
    return starts, SOONEST
  end
  if far and (#member[FLOWS] > 0 or not Flow.are_few(rates, batches, FEW_PART)) then
    local flowing, again = grant_flow(pool, member, question.member, batches, doubt, now)
    if flowing then
      return flowing, again
    end
    gap = Flow.are_few(rates, batches, HALF) and 0 or doubt
  end
  member[OWN_GAP] = gap
  local heard, forth = now + member[BACK], member[REACH] - member[BACK]
  local kept, less = Flow.kept_from_now(pool), Flow.together(pool, 0)
  local who, waiting = question.member, question.waiting
  local ahead, least, light, several, turn, dry, had, enough, begun = false, false, false, false, 0, 0, 0, 0, 0
  local turn_of_far = 0
  local level, level_at, pause, late = nil, 0, SOONEST, false
  local few = waiting <= CALLS
  local stays = few and member[CONTENT] == 1
  member[CONTENT] = 0
  for _, batch in ipairs(batches) do
    local takes, fits, strict_fits, apart = 0, now, false, gap > 0 and pool.apart == who
    for i, rate in ipairs(rates) do
      if batch[i] ~= 0 then
        local at = fits_at(rate, batch[i], now, less, apart)
        takes = max(takes, time_for(rate, batch[i]))
        fits = max(fits, at)
        if rate[KIND] == STRICT then
          strict_fits = max(strict_fits or at, at)
        end
      end
    end
    local start = max(heard, Flow.beside(kept, fits, now))
    if not ahead then
      ahead, least, light, turn, dry, turn_of_far = turns(pool, member, takes, now)
      several = turn > takes
      light = light and several and gap == 0
      had = least and least + turn or 0
      enough, begun = had, member[SERVED]
      if light and begun >= had then
        local first = before(pool, member, who, had, now) == 0
        enough = start <= dry + (first and turn or 0) and begun + turn or had
      end
    end
    if strict_fits then
      if fits ~= level_at then
        local reach, left = 0, false
        for _, each in pairs(pool.members) do
          reach = each[SHORT_UNTIL] > now and max(reach, each[REACH]) or reach
        end
        pause = SOONEST + min(EARLY, reach)
        late = fits <= now and 0 < member[PUT_OFF] and member[PUT_OFF] <= now - pause
        for i, rate in ipairs(rates) do
          if batch[i] ~= 0 and rate[KIND] == STRICT then
            local time = (divided(min(room(rate, fits), ENOUGH * batch[i]), takes, batch[i]))
            left = left and min(left, time) or time
          end
        end
        level, level_at = level_of(pool, member, left, now, late), fits
      end
      if level and member[SERVED] >= level then
        if late or member[PUT_OFF] <= 0 or member[PUT_OFF] > now then
          member[PUT_OFF] = fits
        end
        local again = fits + pause - forth
        member[SHORT_UNTIL] = exact(max(again, member[LAST_START], now) + EARLY + 2 * member[REACH] + GRACE)
        return starts, min(FAR, max(SOONEST, again - now))
      end
    end
    local again, content = false, few and 0 < waiting and waiting <= #starts
    local most = begun + floor(turn / 2) + member[REACH]
    if least and several and content and member[SERVED] + takes > most then
      again = member[LAST_START] - (dry - now) - forth
    elseif start > dry then
      if member[LAST_START] > now + (least and 2 * ahead or ahead) then
        again = member[LAST_START] - ahead
      elseif strict_fits == fits then
        again = false
      elseif Shift.others_first(pool, member, who, turn_of_far, now) then
        again = start - (dry - now) - forth
      elseif light and member[SERVED] >= enough then
        local halves = max(0, 2 * before(pool, member, who, had, now) - 1)
        again = start - (dry - now) - forth + floor(turn * halves / 2)
      elseif least and member[SERVED] >= enough and not (apart and pool.prepaid > 0) then
        again = (member[LAST_START] > dry and member[LAST_START] or start) - (dry - now) - forth
      end
    end
    if again then
      member[CONTENT] = (content or (#starts == 0 and stays)) and 1 or 0
      member[SHORT_UNTIL] = exact(max(again, member[LAST_START], now) + EARLY + 2 * member[REACH] + GRACE)
      return starts, max(SOONEST, again - now)
    end
    local whole = 10 * kept.last > 9 * ALL
    if start > now + FAR and (whole or member[PUT_OFF] == 0 or now - member[PUT_OFF] < FAR) then
      if member[PUT_OFF] == 0 then
        member[PUT_OFF] = now
      end
      local waits = kept.last > 0
      for _, each in pairs(pool.members) do
        waits = waits or each[OWN_GAP] > 0
      end
      member[SHORT_UNTIL] = waits and exact(now + AGAIN + 2 * member[REACH] + GRACE) or 0
      return starts, min(start - FAR - now, AGAIN)
    end
    member[PUT_OFF] = 0
    local stamp, used_by, taken_at = next_stamp(pool), start + doubt, max(fits, Flow.alone(kept, heard, now))
    local later = gap > 0 and 0 or Flow.alone(kept, used_by, now) - taken_at
    Shift.take(pool, member, who, now, least and begun >= had, few)
    for i, rate in ipairs(rates) do
      if batch[i] ~= 0 then
        charge(rate, batch[i], taken_at, stamp, later)
        tell_taken(rate, batch[i], start, doubt)
      end
    end
    Flow.keep_beside(pool, kept, used_by)
    Shift.serve(pool, member, takes)
    member[LAST_START] = start
    starts[#starts + 1] = start
  end
  member[CONTENT] = few and 1 or 0
  local waits = member[LAST_START] > now + EARLY
  for _, rate in ipairs(rates) do
    waits = waits or (rate[KIND] == STRICT and not few)
  end
  member[SHORT_UNTIL] = waits and member[LAST_START] + member[REACH] + GRACE or 0
  return starts, 0
end

