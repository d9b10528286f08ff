-- What the chat was called of which a conversation is a branch, while its title still says so. A title that
-- a person writes is their own, whatever it looks like. Beside the conversations, whose last column,
-- token ids, can be long.
create table conversation_branches (
    conversation_id text not null primary key references conversations (id) on delete cascade,
    of_title text not null
) strict;

create trigger branch_renamed after update of title on conversations when new.title <> old.title
begin
    delete from conversation_branches where conversation_id = new.id;
end;
