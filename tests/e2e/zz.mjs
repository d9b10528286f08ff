import { Home } from './core.mjs';
import { test } from 'node:test';
test('x', {timeout:500000}, async (t) => {
  const home = await Home.make(t, []); home.env.CAIRN_HOME='/tmp/starter'; const core = await home.start(); await core.set({temperature:0,max_tokens:260});
  const ask = async (id, text) => { await core.call({type:'send_message', conversation_id:id, text}); for(;;){ const {messages}=await core.call({type:'get_conversation', id}); const m=messages.at(-1); if (m.status!=='streaming'){ console.log('Q', text, '\nA', m.text, '\n', m.stats?.finish_reason, m.stats?.cached_tokens, m.stats?.prompt_tokens, m.stats?.generation_tps, m.error); return; } await new Promise(r=>setTimeout(r,100)); } };
  const conv = async (...texts) => { const {conversation}=await core.call({type:'new_conversation'}); for (const x of texts) await ask(conversation.id, x); };
  await conv('What is the capital of France?', 'What is it known for?', 'Write a haiku about it.');
  await conv('What is a cairn?', 'Who builds them?');
  await conv('Name three colours.', 'And three more?');
  await conv('How do I reverse a list in Python?');
  await conv('Explain gravity in one sentence.', 'And magnetism?');
  await conv('What are the primary colors?');
  await core.end('SIGTERM');
});
