-- What the chat was called of which a conversation is a branch, and what the branch was called after it.
-- While it is called that, its title says so; one that a person writes is their own, whatever it looks
-- like, until they take it back. Beside the conversations, whose last column, token ids, can be long.
create table conversation_branches (
    conversation_id text not null primary key references conversations (id) on delete cascade,
    title text not null,
    of_title text not null
) strict;
