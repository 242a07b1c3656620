-- Several records of one group: all are written, or, if one of them is not as it was seen, none.
--
-- KEYS     the records        ARGV[1]  the new mark, like no other        ARGV[2]  the channel for news
--          ARGV[3]  1 if news go to the channel of a shard
--          and three more for each record: the mark that was seen ('' if it was not there, '*' if it does
--          not matter), for how many milliseconds the text is to be kept ('' to only look), the text
-- reply    the time in microseconds, 1 if all were as seen and else 0, then mark and text of each by now;
--          the text is left out where it is the one that was given
--
-- A record is kept as its mark, a space, its text. Asked twice by the same mark, it is written once. A key with
-- anything else has the mark '?', which no process writes.

local mark = ARGV[1]
local marks, texts, seen, keep = {}, {}, {}, {}
local same, again, written = true, true, 0

for i, key in ipairs(KEYS) do
  marks[i], texts[i] = '', ''
  local kept = redis.pcall('GET', key)
  local space = type(kept) == 'string' and string.find(kept, ' ', 1, true)
  if space then
    marks[i], texts[i] = string.sub(kept, 1, space - 1), string.sub(kept, space + 1)
  elseif kept then
    marks[i], texts[i] = '?', 'not a record'
  end
  seen[i], keep[i] = ARGV[3 * i + 1], ARGV[3 * i + 2]
  same = same and (marks[i] == seen[i] or seen[i] == '*')
  if keep[i] ~= '' then
    again = again and marks[i] == mark
    written = written + 1
  end
end

if written > 0 and again then
  same = true -- the reply was lost, and the client asks again
elseif written > 0 and same then
  for i, key in ipairs(KEYS) do
    if keep[i] ~= '' then
      redis.call('SET', key, mark .. ' ' .. ARGV[3 * i + 3], 'PX', keep[i])
    end
  end
  tell(ARGV[2], mark, ARGV[3] == '1')
end

local time = redis.call('TIME')
local reply = {string.format('%.0f', tonumber(time[1]) * 1000000 + tonumber(time[2])), same and 1 or 0}
for i in ipairs(KEYS) do
  if same and keep[i] ~= '' then
    marks[i], texts[i] = mark, ''
  end
  reply[#reply + 1] = marks[i]
  reply[#reply + 1] = texts[i]
end
return reply
