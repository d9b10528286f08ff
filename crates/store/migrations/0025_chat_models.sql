-- The model that was chosen in a conversation; null: none was, and the last answer's writes the next.
alter table conversations add column model text;

-- Token ids stay the last column: SQLite reads through what stands before the one it wants.
alter table conversations add column new_token_ids blob check (length(new_token_ids) % 4 = 0);
update conversations set new_token_ids = prefix_token_ids where prefix_token_ids is not null;
alter table conversations drop column prefix_token_ids;
alter table conversations rename column new_token_ids to prefix_token_ids;

-- Older answers have the name among their figures only.
update messages set model = json_extract(stats, '$.model')
    where model is null and role = 'assistant' and json_valid(stats);

-- The list of conversations looks up the model of each one's last answer, without reading its text.
create index messages_with_model on messages (id, model) where model is not null;
