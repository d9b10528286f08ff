-- The newest message when the conversation's model was chosen: later ones on its branch were asked since.
-- Null: nobody knows, or nothing was chosen.
alter table conversations add column model_chosen_after_seq integer;

-- Token ids stay the last column: SQLite reads through what stands before the one it wants.
alter table conversations add column new_token_ids blob check (length(new_token_ids) % 4 = 0);
update conversations set new_token_ids = prefix_token_ids where prefix_token_ids is not null;
alter table conversations drop column prefix_token_ids;
alter table conversations rename column new_token_ids to prefix_token_ids;
