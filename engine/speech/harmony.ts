import type { ToolCall } from '../../core/rl/rollout/rollout.ts';
import { parseWritten, writeWritten } from '../../core/written-json.ts';

const markers = /(<\|start\|>|<\|end\|>|<\|call\|>|<\|return\|>|<\|message\|>)/;

/**
 * Reads gpt-oss messages in channels. Thoughts are in `analysis`, calls go to a function, the answer is in `final`. A
 * turn begins within a header. Text between two messages is dropped. A header that is cut off by the end becomes text,
 * as in vLLM.
 */
export function readHarmony(text: string): {
  reasoning: string;
  content: string;
  toolCalls: ToolCall[];
} {
  const [reasoning, content]: [string[], string[]] = [[], []];
  const toolCalls: ToolCall[] = [];
  let [header, said]: [string | null, string | null] = ['', null];
  const end = (): void => {
    if (said !== null) {
      const { channel, recipient, isJson } = headerOf(header!);
      if (recipient !== undefined && isFunction(recipient)) toolCalls.push(callOf(recipient, said, isJson));
      else if (said !== '' && channel === 'analysis') reasoning.push(said);
      else if (said !== '' && (channel === 'final' || (channel === 'commentary' && recipient === undefined)))
        content.push(said);
    } else if (header !== null && header !== '') content.push(header);
    [header, said] = [null, null];
  };
  for (const piece of text.split(markers)) {
    if (piece === '<|message|>' && header !== null && said === null) said = '';
    else if (piece === '<|start|>') {
      end();
      header = piece;
    } else if (markers.test(piece) && piece !== '<|message|>') end();
    else if (said !== null) said += piece;
    else if (header !== null) header += piece;
  }
  end();
  return {
    reasoning: reasoning.join('\n'),
    content: content.join('\n'),
    toolCalls,
  };
}

function headerOf(header: string): { channel?: string; recipient?: string; isJson: boolean } {
  const [, channel] = /<\|channel\|>\s*([a-z]+)/.exec(header) ?? [];
  const [, recipient] = /\bto=([^\s<]+)/.exec(header) ?? [];
  const rest = header
    .replace(/^<\|start\|>\s*\S*?(?=\s|<|$)/, '')
    .replace(/<\|channel\|>\s*[a-z]+/, '')
    .replace(/\bto=[^\s<]+/, '')
    .trim();
  return { ...(channel && { channel }), ...(recipient && { recipient }), isJson: rest === '' || rest.includes('json') };
}

/** Arguments that say to be something else than JSON stay as they were written. */
function callOf(recipient: string, said: string, isJson: boolean): ToolCall {
  const parsed = isJson ? parseWritten(said) : null;
  return { name: recipient.replace(/^functions\./, ''), arguments: parsed === null ? said : writeWritten(parsed) };
}

/** Tools of the model's own, which no environment has. */
function isFunction(recipient: string): boolean {
  return recipient.startsWith('functions.') || !/^(?:python|browser|container|assistant)(?:\.|$)/.test(recipient);
}
