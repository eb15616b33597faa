import { setImmediate as letOthers } from 'node:timers/promises';
import { present } from '../core/present.ts';
import { RatchetError } from '../core/errors.ts';
import { layout } from '../runs/layout.ts';
import { permutation } from '../core/random.ts';
import type { TrainSample } from '../core/rl/learning/batch.ts';
import type { RunHandle } from '../core/rl/run-state.ts';
import type { DataRef, RunSpec } from '../config/run-spec.ts';
import type { ChatOptions, ChatTokenizer } from '../engine/index.ts';
import type { SftRow } from '../load/data/sft-data.ts';
import { sha256 } from '../store/file-store.ts';
import { spokenOf } from '../core/rl/rollout/demonstration-rows.ts';
import { KeptRows, keptRows } from './kept-rows.ts';
import { storeOf } from '../runs/run-access.ts';

/** Variables of the chat template, as the policy's own prompts have them. */
export type TemplateUse = Pick<ChatOptions, 'templateArguments'>;

interface Whole extends TemplateUse {
  readonly isWhole?: boolean;
  /** A row that is longer is cut. */
  readonly tokensMax?: number;
  /** Setting that names the rows, for messages. */
  readonly at?: string;
}

/** Rows that are tokenized before heartbeats and other work get a turn. */
const rowsAtOnce = 64;

/** The rows of supervised step n, from the run's own copy of `[sft] data`: each once an epoch, in an order keyed by (seed, epoch). */
export async function drawData(
  run: RunHandle,
  spec: RunSpec,
  tokenizer: ChatTokenizer,
): Promise<(step: number) => TrainSample[]> {
  const rows = await storedRows<SftRow>(run, spec.sft!.data!);
  const placesOf = drawnRows(rows.length, spec);
  return (step) => placesOf(step).flatMap((place) => samplesOf(rows.row(place), tokenizer, spec.sampling));
}

/** Indices of a step's rows. */
export function drawnRows(count: number, { seed, sft }: Pick<RunSpec, 'seed' | 'sft'>): (step: number) => number[] {
  const { batchSize } = sft!;
  const rowAt = inPasses(count, (epoch) => permutation(count, seed, 'sft', epoch));
  return (step) => Array.from({ length: batchSize }, (_, row) => rowAt((step - 1) * batchSize + row));
}

/** The row at a place, all rows once a pass; `orderOf` has the order of one. */
export function inPasses(count: number, orderOf: (pass: number) => readonly number[]): (place: number) => number {
  let [pass, order]: [number, readonly number[]] = [-1, []];
  return (place) => {
    const wanted = Math.floor(place / count);
    if (wanted !== pass) [pass, order] = [wanted, orderOf(wanted)];
    return order[place % count]!;
  };
}

/** Refuses, before anything is trained, rows that the model has no room for or its chat template does not take. */
export async function checkData(
  run: RunHandle,
  data: DataRef,
  model: { readonly tokenizer: ChatTokenizer; readonly positionsMax: number } & Whole,
): Promise<void> {
  const rows = await storedRows<SftRow>(run, data);
  for (let index = 0; index < rows.length; index++) {
    await requireRoom(data, index, model, () => samplesOf(rows.row(index), model.tokenizer, model));
  }
}

/** Throws if a row of the file gives no sample, or one longer than allowed. */
export async function requireRoom(
  data: DataRef,
  index: number,
  {
    positionsMax,
    tokensMax = Infinity,
    at = 'sft.data',
  }: { readonly positionsMax: number } & Pick<Whole, 'tokensMax' | 'at'>,
  samples: () => TrainSample[],
): Promise<void> {
  if (index % rowsAtOnce === 0) await letOthers();
  const longest = Math.max(
    ...samplesIn({ index, at }, samples).map(({ tokenIds }) => Math.min(tokenIds.length, tokensMax)),
  );
  if (longest <= positionsMax) return;
  throw new RatchetError(
    'ConfigInvalid',
    `${at}: row ${index + 1} of ${data.path} has ${longest} tokens; the model takes ${positionsMax} at most. Shorten or remove it.`,
  );
}

function samplesIn(row: { readonly index: number; readonly at: string }, samples: () => TrainSample[]): TrainSample[] {
  try {
    return samples();
  } catch (cause) {
    const reason = cause instanceof Error ? cause.message : String(cause);
    throw new RatchetError('ConfigInvalid', `${row.at}: row ${row.index + 1} cannot be learned: ${reason}`, { cause });
  }
}

/** The run's own copy of the rows it began with. */
export async function storedRows<Row extends object>(run: RunHandle, data: DataRef): Promise<KeptRows<Row>> {
  return keptRows(data.sha256!, () => readStoredRows<Row>(run, data));
}

async function readStoredRows<Row extends object>(run: RunHandle, data: DataRef): Promise<KeptRows<Row>> {
  const key = layout.sftData();
  const bytes = await storeOf(run).read(key);
  if (bytes && sha256(bytes) === data.sha256) return new KeptRows(bytes, key);
  throw new RatchetError(
    'CheckpointDamaged',
    `${storeOf(run).uri}${key}: expected the rows this run began with (sha256 ${data.sha256?.slice(0, 12)}…), ${bytes ? 'found others' : 'found nothing'}. Restore the file from a copy.`,
  );
}

interface Part {
  readonly text: string;
  readonly isAnswer: boolean;
}

/**
 * A conversation as the policy will see it: each answer follows the tokens of its rendered prompt, and only answers are
 * trained, up to the token that ends them. One sample, or one for each answer if the chat template renders earlier
 * turns differently once later ones follow. `isWhole`: every answer is trained, including those of its prompt: in
 * one sample, as the template renders the whole, if it begins and ends all answers alike. Text after the last answer
 * stays, without loss.
 */
export function samplesOf(row: SftRow, tokenizer: ChatTokenizer, options: Whole = {}): TrainSample[] {
  const { messages, tools } = row;
  const { templateArguments, isWhole = false } = options;
  const from = isWhole ? 0 : row.from;
  const answers = messages.flatMap(({ role }, i) => (role === 'assistant' && i >= from ? [i] : []));
  const until = (count: number, addGenerationPrompt: boolean): string =>
    tokenizer.renderChatText(messages.slice(0, count), { addGenerationPrompt, tools, templateArguments });
  requireCalls({ messages, ...present({ tools }) }, tokenizer);
  requireReasoning(answers, row, { tokenizer, templateArguments });
  const whole = until(messages.length, false);
  const conversation = { messages, answers, whole, until };
  const appended = appendedParts(conversation);
  if (appended === null && answers.length === 1)
    throw new Error('its chat template does not continue the prompt it gives');
  const parts = appended ?? (isWhole ? markedParts(conversation, tokenizer) : null);
  if (parts === null) {
    return answers.flatMap((n) =>
      samplesOf({ messages: messages.slice(0, n + 1), from: n, ...present({ tools }) }, tokenizer, {
        templateArguments,
      }),
    );
  }
  if (isWhole) parts.push({ text: whole.slice(lengthOf(parts)), isAnswer: false });
  return [sampleOf(parts, tokenizer)];
}

interface Conversation extends Pick<SftRow, 'messages'> {
  /** Indices of the messages to learn. */
  readonly answers: readonly number[];
  readonly whole: string;
  /** Renders the first `count` messages, with or without the end of a prompt. */
  readonly until: (count: number, addGenerationPrompt: boolean) => string;
}

/** Text up to the last answer; null when a turn does more than append to it. */
function appendedParts({ answers, whole, until }: Conversation): Part[] | null {
  const parts: Part[] = [];
  let at = '';
  for (const i of answers) {
    const [before, after] = [until(i, true), until(i + 1, false)];
    if (!before.startsWith(at) || !after.startsWith(before) || !whole.startsWith(after)) return null;
    parts.push(
      { text: before.slice(at.length), isAnswer: false },
      { text: after.slice(before.length), isAnswer: true },
    );
    at = after;
  }
  return parts;
}

/**
 * Text of a whole conversation up to its last answer. An answer is the text between the end of a prompt and the token
 * that ends the last answer; null when either also occurs elsewhere. prime-rl treats conversations of Qwen3 so, whose
 * template drops earlier reasoning (`build_training_sample` of renderers 0.1.12, with the `sampled_mask` of qwen3.py).
 */
function markedParts({ messages, answers, whole, until }: Conversation, tokenizer: ChatTokenizer): Part[] | null {
  const begin = until(answers[0]!, true).slice(until(answers[0]!, false).length);
  const last =
    begin === ''
      ? ''
      : until(answers.at(-1)! + 1, false)
          .split(begin)
          .at(-1)!;
  const endId = tokenizer.encode(last).findLast((id) => tokenizer.isSpecial(id));
  if (endId === undefined) return null;
  const end = tokenizer.tokenText(endId);
  const [head = '', ...turns] = whole.split(begin);
  const isPlain = turns.length === answers.length && !JSON.stringify(messages).includes(end);
  if (!isPlain || last.split(end).at(-1)!.trim() !== '' || !turns.every((turn) => turn.includes(end))) return null;
  const cut = turns.map((turn) => turn.indexOf(end) + end.length);
  return turns.flatMap((turn, i) => [
    { text: (i === 0 ? head : turns[i - 1]!.slice(cut[i - 1])) + begin, isAnswer: false },
    { text: turn.slice(0, cut[i]), isAnswer: true },
  ]);
}

function lengthOf(parts: readonly Part[]): number {
  return parts.reduce((length, { text }) => length + text.length, 0);
}

function sampleOf(parts: readonly Part[], tokenizer: ChatTokenizer): TrainSample {
  let said = '';
  const encoded = parts.map(({ text, isAnswer }) => {
    const ids = tokenizer.encodeAfter(said, text) ?? tokenizer.encode(text);
    said += text;
    return { ids, isAnswer };
  });
  const tokenIds = encoded.flatMap(({ ids }) => ids);
  const zeros = tokenIds.map(() => 0);
  const lossMask = encoded.flatMap(({ ids, isAnswer }) =>
    ids.map((_, i) => (isAnswer && i < spokenOf(tokenizer, ids) ? 1 : 0)),
  );
  return { tokenIds, lossMask, behaviorLogprobs: zeros, advantages: zeros };
}

/** Throws when a template silently drops an answer's reasoning, which would then be trained without it. */
function requireReasoning(
  answers: readonly number[],
  { messages, tools }: SftRow,
  { tokenizer, templateArguments }: TemplateUse & { readonly tokenizer: ChatTokenizer },
): void {
  const options = { addGenerationPrompt: false, tools, templateArguments };
  for (const i of answers) {
    const { reasoning_content: reasoning, ...bare } = messages[i]!;
    if (!reasoning) continue;
    const before = messages.slice(0, i);
    const text = tokenizer.renderChatText([...before, messages[i]!], options);
    if (text !== tokenizer.renderChatText([...before, bare], options)) continue;
    throw new Error('its chat template writes no reasoning_content, and an answer has it');
  }
}

/** Throws when a template silently drops tool calls, since an empty answer would be trained. */
function requireCalls({ messages, tools }: Pick<SftRow, 'messages' | 'tools'>, tokenizer: ChatTokenizer): void {
  const named = messages.flatMap(({ tool_calls: calls = [] }) => calls.map(({ function: { name } }) => name));
  if (named.length === 0) return;
  const text = tokenizer.renderChatText(messages, { addGenerationPrompt: false, tools });
  const bare = messages.map((message) => {
    const { tool_calls: _, ...others } = message;
    return others;
  });
  if (text !== tokenizer.renderChatText(bare, { addGenerationPrompt: false, tools })) return;
  throw new Error(`its chat template writes no calls of tools, and an answer calls ${named[0]}`);
}
