/** A turn as its thoughts and the rest. */
export interface Thought {
  readonly reasoning: string;
  readonly rest: string;
}

interface Tags {
  readonly open: string;
  readonly close: string;
}

export const thinkTags: Tags = { open: '<think>', close: '</think>' };

function noThought(text: string): Thought {
  return { reasoning: '', rest: text };
}

/** All is thought up to the closing tag, of a text without one all of it: vLLM's deepseek_r1. */
export function thinksFirst(text: string): Thought {
  const { open, close } = thinkTags;
  const start = text.indexOf(open);
  const body = start < 0 ? text : text.slice(start + open.length);
  const end = body.indexOf(close);
  return end < 0
    ? { reasoning: body, rest: '' }
    : { reasoning: body.slice(0, end), rest: body.slice(end + close.length) };
}

interface Machine extends Tags {
  /** The turn begins with thoughts, without a tag. */
  readonly begins: boolean;
  /** An opening tag in the answer begins thoughts again. */
  readonly reopens: boolean;
  /** A call ends thoughts that were not closed. */
  readonly callMarkers: readonly string[];
  readonly trimsEnd: boolean;
}

/** The readers that vLLM builds on its state machine: a call inside of thoughts ends them and is made. */
export function thinksByMarkers(text: string, machine: Machine): Thought {
  const { open, close, callMarkers } = machine;
  const markers = [open, close, ...callMarkers];
  const pattern = new RegExp(markers.map((marker) => marker.replace(/[.*+?^${}()|[\]\\]/g, '\\$&')).join('|'), 'g');
  const [thoughts, rest]: [string[], string[]] = [[], []];
  let isThought = machine.begins;
  let at = 0;
  for (const { 0: marker, index } of text.matchAll(pattern)) {
    (isThought ? thoughts : rest).push(text.slice(at, index));
    at = index + marker.length;
    if (marker === close) isThought = false;
    else if (marker === open && (isThought || machine.reopens)) isThought = true;
    else {
      isThought = false;
      rest.push(marker);
    }
  }
  (isThought ? thoughts : rest).push(text.slice(at));
  const reasoning = thoughts.join('');
  return {
    reasoning: machine.trimsEnd ? reasoning.trimEnd() : reasoning,
    rest: rest.join(''),
  };
}

/**
 * Default without a setting: text within thought tags is a thought, whether the prompt or the model opened them. Calls
 * within closed thoughts are thoughts; a call within thoughts that were never closed ends them.
 */
export function thinksIfOpened(text: string, callMarkers: readonly string[], isOpen: boolean): Thought {
  const { open, close } = thinkTags;
  const end = text.indexOf(close);
  const isOpened = isOpen || end >= 0 || text.trimStart().startsWith(open);
  if (!isOpened) return noThought(text);
  const start = text.indexOf(open);
  const from = start >= 0 && (end < 0 || start < end) && text.slice(0, start).trim() === '' ? start + open.length : 0;
  if (end >= 0)
    return {
      reasoning: text.slice(from, end),
      rest: text.slice(end + close.length),
    };
  const call = callMarkers.map((marker) => text.indexOf(marker, from)).filter((at) => at >= 0);
  const until = call.length === 0 ? text.length : Math.min(...call);
  return { reasoning: text.slice(from, until), rest: text.slice(until) };
}
