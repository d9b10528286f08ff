-- The chat template that the last answer was written with, as a hash; null: not known. With another one
-- all of the prompt is another.
alter table conversations add column answered_template text;
