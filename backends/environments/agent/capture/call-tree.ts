import { createHash } from 'node:crypto';
import { type ChatMessage, contentOf, type MessageToolCall, type Turn } from '../../../../core/rl/rollout/rollout.ts';
import type { CallMemory, ModelCall } from './model-call.ts';
import { type NamePair, SandboxNames } from './sandbox-names.ts';
import type { SetAside } from './types.ts';
import { isAlike, isOneOutput } from './volatile-outputs.ts';

/** A call in the tree of its rollout. */
export interface PlacedCall {
  readonly after: CallNode | null;
  /** Messages that the program sent since then. */
  readonly live: readonly ChatMessage[];
  /** The same, as the model sees it. */
  readonly heard: readonly ChatMessage[];
  /** The whole conversation, as the model sees it. */
  readonly messages: readonly ChatMessage[];
  /** Tools whose outputs differ from those of the recorded call, and count as the same. */
  readonly mapped: readonly string[];
  /** The conversation begins with instructions that the program gives anew with each call. */
  readonly isInstructed: boolean;
}

/** A turn of this attempt, with both sides of its conversation. */
export interface CallNode extends Pick<PlacedCall, 'after' | 'live' | 'heard' | 'isInstructed'> {
  readonly turn: Turn;
  readonly id: string;
  readonly said: Said;
}

/** A turn as its program was told it. */
export interface Said {
  readonly content: string;
  readonly reasoning: string;
  readonly calls: readonly MessageToolCall[];
}

/**
 * The conversations of a rollout. Programs send the whole history with each call: it is recognized as the turns that
 * they were told, so that the model sees exactly its own tokens again. Where an earlier attempt sent the same messages,
 * up to what differs between sandboxes, the model sees those of that attempt.
 */
export class CallTree {
  readonly #names = new SandboxNames();
  readonly #children = new Map<string | null, CallNode[]>();
  readonly #byId = new Map<string, CallNode>();
  readonly #earlier: readonly Turn[];
  readonly #earlierAfter = new Map<string | null, Turn[]>();
  readonly #unasked: Map<string, Turn>;
  readonly #kept = new Set<CallNode>();
  readonly #mapped = new Map<string, number>();
  /** Number of the attempt that a turn is of, by its id. */
  readonly #attemptOf: ReadonlyMap<string, number>;
  #firstDifference: SetAside['first'] = null;

  /** `attempts`: numbers of the turns in `earlier` with which attempts after the first began. */
  constructor(earlier: readonly Turn[], attempts: readonly number[] = []) {
    this.#earlier = earlier;
    this.#attemptOf = new Map(
      earlier.map(({ call }, i) => [call!.id, attempts.filter((beginning) => beginning <= i).length]),
    );
    this.#unasked = new Map(earlier.map((turn) => [turn.call!.id, turn]));
    for (const turn of earlier) {
      const { after } = turn.call!;
      this.#earlierAfter.set(after, [...(this.#earlierAfter.get(after) ?? []), turn]);
    }
  }

  place({ messages, isInstructed = false }: Pick<ModelCall, 'messages' | 'isInstructed'>): PlacedCall {
    const { node, next } = this.#walk(messages);
    const live = messages.slice(next);
    const { heard, mapped } = this.#recorded(node, live);
    const seen = [...pathTo(node).flatMap((one) => [...one.heard, ownMessage(one)]), ...heard];
    return { after: node, live, heard, mapped, messages: seen, isInstructed };
  }

  add({ after, live, heard, mapped, isInstructed }: Omit<PlacedCall, 'messages'>, turn: Turn): CallNode {
    const { id } = turn.call!;
    const isRecalled = this.#unasked.delete(id);
    for (const tool of mapped) this.#mapped.set(tool, (this.#mapped.get(tool) ?? 0) + 1);
    const said = this.#saidIn(turn);
    const node = { after, live, heard, isInstructed, turn, id, said };
    const above = after?.id ?? null;
    this.#children.set(above, [...(this.#children.get(above) ?? []), node]);
    this.#byId.set(id, node);
    if (!isRecalled) this.#noteDifference(above, heard);
    return node;
  }

  /** Names that the program uses, and those under which the model knows the same. */
  names(): readonly NamePair[] {
    return this.#names.pairs();
  }

  /** Whether the conversation of the call with this id begins with instructions. */
  isInstructed(id: string): boolean {
    return this.#byId.get(id)?.isInstructed === true;
  }

  learn(names: readonly NamePair[]): void {
    this.#names.learn(names);
  }

  /** A call that was finished before the snapshot in which the program goes on. */
  keep(turn: Turn, { isInstructed }: Pick<PlacedCall, 'isInstructed'>): void {
    const { heard = [] } = turn;
    const after = this.#byId.get(turn.call!.after ?? '') ?? null;
    this.#kept.add(this.add({ after, live: heard, heard, mapped: [], isInstructed }, turn));
  }

  /** The program's side of a conversation, to the answer with this id. */
  conversation(id: string): ReturnType<CallMemory['conversation']> {
    const path = pathTo(this.#byId.get(id) ?? null);
    const [first] = path;
    if (first === undefined) return undefined;
    const messages = path.flatMap(({ live, said: { content, calls } }): ChatMessage[] => [
      ...live,
      { role: 'assistant', content, ...besideText(calls) },
    ]);
    return { messages, isInstructed: first.isInstructed };
  }

  /** The latest answer to the same question, if no call has gone on from it. */
  answerTo({ after, live }: PlacedCall): CallNode | undefined {
    const isSameQuestion = (node: CallNode): boolean =>
      node.live.length === live.length && beginsWith(live, 0, node.live);
    return this.#children
      .get(after?.id ?? null)
      ?.findLast((node) => isSameQuestion(node) && !this.#children.has(node.id));
  }

  toRecorded(text: string): string {
    return this.#names.toRecorded(text);
  }

  toLive(text: string): string {
    return this.#names.toLive(text);
  }

  /** Outputs of tools that count as the recorded ones though their texts differ, by the tool's name. */
  mapped(): Readonly<Record<string, number>> {
    return Object.fromEntries(this.#mapped);
  }

  setAside(): SetAside | null {
    if (this.#unasked.size === 0) return null;
    const turns = this.#earlier.filter(({ call }) => this.#unasked.has(call!.id));
    return {
      turns: turns.map(({ call }) => call!.id),
      tokens: turns.reduce((sum, { tokenIds }) => sum + tokenIds.length, 0),
      first: this.#firstDifference,
    };
  }

  /** The latest turn that the messages continue, and the index of the first message behind it. */
  #walk(messages: readonly ChatMessage[]): { readonly node: CallNode | null; readonly next: number } {
    let found: { readonly node: CallNode | null; readonly next: number } = { node: null, next: 0 };
    for (;;) {
      const further = this.#step(messages, found.node, found.next);
      if (further === undefined) return found;
      found = { node: further, next: found.next + further.live.length + 1 };
    }
  }

  #step(messages: readonly ChatMessage[], node: CallNode | null, from: number): CallNode | undefined {
    return this.#children.get(node?.id ?? null)?.find((child) => {
      const { live, said } = child;
      const at = from + live.length;
      // The messages after it are the question of this call.
      if (at + 1 >= messages.length || !isSaid(messages[at]!, said)) return false;
      return beginsWith(messages, from, live) || (this.#kept.has(child) && this.#isHeardBefore(child, messages, from));
    });
  }

  /** Whether these are the messages that an earlier attempt sent with a call, up to what differs between sandboxes. */
  #isHeardBefore({ heard }: CallNode, messages: readonly ChatMessage[], from: number): boolean {
    const pairs = this.#agree(heard, messages.slice(from, from + heard.length));
    if (pairs !== null) this.#names.learn(pairs);
    return pairs !== null;
  }

  /** New messages as the model sees them: those of the same call of an earlier attempt, else with the names that it knows. */
  #recorded(node: CallNode | null, live: readonly ChatMessage[]): Pick<PlacedCall, 'heard' | 'mapped'> {
    const before = this.#earlierAfter.get(node?.id ?? null) ?? [];
    const isUnasked = (turn: Turn): boolean => this.#unasked.has(turn.call!.id);
    const unaskedFirst = before.toSorted((a, b) => Number(isUnasked(b)) - Number(isUnasked(a)));
    for (const { heard = [] } of unaskedFirst) {
      const pairs = this.#agree(heard, live);
      if (pairs === null) continue;
      this.#names.learn(pairs);
      return { heard, mapped: [] };
    }
    return (
      this.#alike(node, before.filter(isUnasked), live) ?? {
        heard: live.map((one) => this.#withKnownNames(one)),
        mapped: [],
      }
    );
  }

  /**
   * The newest call of an earlier attempt that differs in nothing but outputs of the same calls of tools, if these are alike;
   * or were already different each time: two attempts sent others. One attempt may ask the same twice, and get two outputs.
   */
  #alike(
    node: CallNode | null,
    unasked: readonly Turn[],
    live: readonly ChatMessage[],
  ): Pick<PlacedCall, 'heard' | 'mapped'> | null {
    const others = unasked.flatMap(({ call, heard = [] }) => {
      const same = this.#sameButOutputs(heard, live);
      return same === null ? [] : [{ heard, attempt: this.#attemptOf.get(call!.id)!, ...same }];
    });
    const isVolatile = differByAttempt(others);
    const found = others.findLast(({ outputs }) => isVolatile || outputs.every(({ was, is }) => isAlike(was, is)));
    if (found === undefined) return null;
    this.#names.learn(found.pairs);
    return { heard: found.heard, mapped: found.outputs.map(({ id }) => toolOf(node, id)) };
  }

  #sameButOutputs(recorded: readonly ChatMessage[], live: readonly ChatMessage[]) {
    if (recorded.length !== live.length) return null;
    const outputs: { readonly id: string; readonly was: string; readonly is: string }[] = [];
    const rest = { recorded: [] as ChatMessage[], live: [] as ChatMessage[] };
    for (const [i, one] of recorded.entries()) {
      const other = live[i]!;
      if (isOneOutput(one, other) && this.#agree([one], [other]) === null) {
        outputs.push({ id: one.tool_call_id!, was: one.content, is: other.content });
        continue;
      }
      rest.recorded.push(one);
      rest.live.push(other);
    }
    const pairs = this.#agree(rest.recorded, rest.live);
    return pairs === null ? null : { outputs, pairs };
  }

  #agree(recorded: readonly ChatMessage[], live: readonly ChatMessage[]): ReturnType<SandboxNames['agree']> {
    if (recorded.length !== live.length) return null;
    const texts: { recorded: string; live: string }[] = [];
    for (const [i, one] of recorded.entries()) {
      const other = live[i]!;
      if (!isSameButTexts(one, other)) return null;
      texts.push({ recorded: one.content, live: other.content });
      for (const [k, call] of (one.tool_calls ?? []).entries())
        texts.push({ recorded: call.function.arguments, live: other.tool_calls![k]!.function.arguments });
    }
    return this.#names.agree(texts);
  }

  #withKnownNames(message: ChatMessage): ChatMessage {
    const { tool_calls: calls } = message;
    return {
      ...message,
      content: this.toRecorded(message.content),
      ...(calls === undefined
        ? {}
        : { tool_calls: calls.map((call) => mapCall(call, (text) => this.toRecorded(text))) }),
    };
  }

  #saidIn(turn: Turn): Said {
    const toLive = (text: string): string => this.toLive(text);
    return {
      content: toLive(contentOf(turn)),
      reasoning: toLive(turn.said?.reasoning ?? turn.reasoning ?? ''),
      calls: callsOf(turn, turn.call!.id).map((call) => mapCall(call, toLive)),
    };
  }

  #noteDifference(after: string | null, heard: readonly ChatMessage[]): void {
    const expected = (this.#earlierAfter.get(after) ?? []).find(({ call }) => this.#unasked.has(call!.id));
    if (expected === undefined || this.#firstDifference !== null) return;
    const [was, is] = [expected.heard ?? [], heard].map((messages) => JSON.stringify(messages)) as [string, string];
    let at = 0;
    while (at < was.length && was[at] === is[at]) at++;
    const from = Math.max(0, at - shownBefore);
    const shown = (text: string): string => text.slice(from, from + shownMax);
    this.#firstDifference = { after, was: shown(was), is: shown(is) };
  }
}

/** Whether there are two attempts of which neither heard anything that the other did. */
function differByAttempt(
  heard: readonly { readonly heard: readonly ChatMessage[]; readonly attempt: number }[],
): boolean {
  const texts = new Map<number, Set<string>>();
  for (const one of heard) {
    const known = texts.get(one.attempt) ?? new Set();
    texts.set(one.attempt, known.add(JSON.stringify(one.heard)));
  }
  const all = [...texts.values()];
  return all.some((one, i) => all.slice(i + 1).some((other) => ![...one].some((text) => other.has(text))));
}

function toolOf(node: CallNode | null, id: string): string {
  return node?.said.calls.find((call) => call.id === id)?.function.name ?? 'tool';
}

const shownBefore = 60;
const shownMax = 200;

/** The calls of a conversation, from the first on. */
function pathTo(node: CallNode | null): CallNode[] {
  const path: CallNode[] = [];
  for (let at = node; at !== null; at = at.after) path.push(at);
  return path.reverse();
}

/** The model's own words as it sees them: the text that it sampled. */
function ownMessage({ turn, id }: CallNode): ChatMessage {
  if (turn.said === undefined) return { role: 'assistant', content: turn.text };
  return { role: 'assistant', content: contentOf(turn), ...besideText(callsOf(turn, id)) };
}

function besideText(calls: readonly MessageToolCall[]): { readonly tool_calls?: readonly MessageToolCall[] } {
  return calls.length === 0 ? {} : { tool_calls: calls };
}

/** Ids are the same in each attempt. Nine letters and digits: Mistral's templates take no others. */
function callsOf({ toolCalls = [] }: Turn, id: string): MessageToolCall[] {
  return toolCalls.map((call, i) => {
    const digest = createHash('sha256').update(`${id}/${i}`).digest();
    const number = digest.readBigUInt64BE();
    return { id: number.toString(36).padStart(13, '0').slice(-9), type: 'function', function: call };
  });
}

function mapCall(call: MessageToolCall, map: (text: string) => string): MessageToolCall {
  const { name, arguments: given } = call.function;
  return { ...call, function: { name, arguments: map(given) } };
}

function beginsWith(messages: readonly ChatMessage[], from: number, live: readonly ChatMessage[]): boolean {
  return live.every((message, i) => {
    const other = messages[from + i]!;
    return message.content === other.content && isSameButTexts(message, other);
  });
}

/** Whether two messages are of one kind, and answer or make the same calls. */
function isSameButTexts(a: ChatMessage, b: ChatMessage): boolean {
  const [one, other] = [a.tool_calls ?? [], b.tool_calls ?? []];
  return (
    a.role === b.role &&
    a.tool_call_id === b.tool_call_id &&
    a.name === b.name &&
    one.length === other.length &&
    one.every((call, i) => call.id === other[i]!.id && call.function.name === other[i]!.function.name)
  );
}

/** Programs trim texts, leave out those beside calls, and write arguments anew. */
function isSaid(message: ChatMessage, { content, calls }: Said): boolean {
  if (message.role !== 'assistant') return false;
  const sent = message.tool_calls ?? [];
  const isText = message.content.trim() === content.trim() || (message.content === '' && calls.length > 0);
  return isText && sent.length === calls.length && sent.every((call, i) => isSameCall(call, calls[i]!));
}

function isSameCall({ function: a }: MessageToolCall, { function: b }: MessageToolCall): boolean {
  return a.name === b.name && (a.arguments === b.arguments || compactly(a.arguments) === compactly(b.arguments));
}

function compactly(json: string): string {
  try {
    return JSON.stringify(JSON.parse(json));
  } catch {
    return json;
  }
}
