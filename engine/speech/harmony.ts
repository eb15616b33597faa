import type { ToolCall } from '../../core/rl/rollout.ts';
import { parseWritten, writeWritten } from './written-json.ts';

/** gpt-oss: messages in channels. Thoughts are those of `analysis`, calls those to a function, the answer is in `final`. */
export function readHarmony(text: string): {
  reasoning: string;
  content: string;
  toolCalls: ToolCall[];
} {
  const [reasoning, content]: [string[], string[]] = [[], []];
  const toolCalls: ToolCall[] = [];
  for (const message of text.split(/<\|start\|>|<\|end\|>|<\|call\|>|<\|return\|>/)) {
    const at = message.indexOf('<|message|>');
    if (at < 0) {
      if (message.includes('<|channel|>') || /^\s*(?:assistant)?\s*$/.test(message)) continue;
      content.push(message); // no header: text as it was written
      continue;
    }
    const header = message.slice(0, at);
    const said = message.slice(at + '<|message|>'.length);
    const channel = /<\|channel\|>\s*([a-z]+)/.exec(header)?.[1];
    const recipient = /\bto=([^\s<]+)/.exec(header)?.[1];
    if (recipient !== undefined && isFunction(recipient)) {
      const parsed = parseWritten(said);
      const written = parsed === null ? said : writeWritten(parsed);
      toolCalls.push({
        name: recipient.replace(/^functions\./, ''),
        arguments: written,
      });
    } else if (said === '') continue;
    else if (channel === 'analysis') reasoning.push(said);
    else if (channel === 'final' || (channel === 'commentary' && recipient === undefined)) content.push(said);
  }
  return {
    reasoning: reasoning.join('\n'),
    content: content.join('\n'),
    toolCalls,
  };
}

/** Tools of the model's own, which no environment has. */
function isFunction(recipient: string): boolean {
  return recipient.startsWith('functions.') || !/^(?:python|browser|container|assistant)(?:\.|$)/.test(recipient);
}
