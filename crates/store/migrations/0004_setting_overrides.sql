-- Values of settings that hold for one model or one conversation: JSON objects by key; null without
-- any.
alter table models add column setting_overrides text;
alter table conversations add column setting_overrides text;

-- Token ids stay the last column: SQLite reads through what stands before the one it wants.
alter table conversations add column new_token_ids blob check (length(new_token_ids) % 4 = 0);
update conversations set new_token_ids = prefix_token_ids where prefix_token_ids is not null;
alter table conversations drop column prefix_token_ids;
alter table conversations rename column new_token_ids to prefix_token_ids;

-- From here on only what a person has set is saved. Earlier versions saved all settings at once; a
-- value that was the default then counts as not set, so that a model's own can take its place.
update settings set value = json_remove(value, '$.temperature')
    where key = 'settings'
        and case when json_valid(value) then json_extract(value, '$.temperature') = 0.7 end;
update settings set value = json_remove(value, '$.top_p')
    where key = 'settings'
        and case when json_valid(value) then json_extract(value, '$.top_p') = 0.95 end;
update settings set value = json_remove(value, '$.max_tokens')
    where key = 'settings'
        and case when json_valid(value) then json_extract(value, '$.max_tokens') = 4096 end;
