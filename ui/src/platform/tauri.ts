// The door to a core in the same process: the desktop shell's one command, answered on a channel.
import { Channel, invoke } from '@tauri-apps/api/core';
import { listen } from '@tauri-apps/api/event';
import { CallError, sentenceOf, type Connection, type Platform } from './platform';
import type { Command, Event, Frame, Reply } from './wire';

const RETRY_MS = 1000;

export class TauriPlatform implements Platform {
  call(command: Command): Promise<Reply> {
    return new Promise((resolve, reject) => {
      const channel = new Channel<Frame>((frame) => {
        if ('reply' in frame) resolve(frame.reply);
        else if ('failure' in frame) reject(new CallError(frame.failure.code, frame.failure.message));
      });
      invoke('call', { command, channel }).catch((error: unknown) =>
        reject(new CallError('unreachable', sentenceOf(error))),
      );
    });
  }

  subscribe(onEvent: (event: Event) => void, onState: (state: Connection) => void): () => void {
    let isStopped = false;
    let timer: ReturnType<typeof setTimeout> | undefined;

    const again = () => {
      if (isStopped) return;
      onState('reconnecting');
      timer = setTimeout(open, RETRY_MS);
    };
    const open = () => {
      const channel = new Channel<Frame>((frame) => {
        if (isStopped) return;
        if ('event' in frame) onEvent(frame.event);
        else if ('reply' in frame) onState('open');
        else again();
      });
      invoke('call', { command: { type: 'subscribe' } satisfies Command, channel }).catch(again);
    };

    onState('connecting');
    open();
    return () => {
      isStopped = true;
      clearTimeout(timer);
    };
  }

  onNewChat(run: () => void): () => void {
    const listening = listen('new-chat', run);
    return () => void listening.then((stop) => stop());
  }
}
