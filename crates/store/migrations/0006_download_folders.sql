-- The cache that a download comes to, where its partial files are; null: that of the time when it goes
-- on, for downloads of earlier versions, which had one.
alter table downloads add column cache text;
