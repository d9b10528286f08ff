-- Answers that were being written when Cairn was killed: their end is not in saved context. An ordinary
-- close saves it, and adds no row.
create table broken_off_answers (
    message_seq integer not null primary key references messages (seq) on delete cascade
) strict;
