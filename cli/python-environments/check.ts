import path from 'node:path';
import type {
  CodeFinding,
  LoadedEnvironment,
  WirePlayedRow,
  SampledTurn,
  Score,
  TurnRequest,
  WireError,
  WireMessage,
  WireTool,
} from '../../backends/environments/verifiers/protocol.ts';
import { otherPart } from '../../core/rl/rollout/message-parts.ts';
import { chatMessage } from '../../backends/environments/verifiers/conversation.ts';
import { resumingOf } from '../../backends/environments/verifiers/environment.ts';
import { saysResume } from '../../play/after-death.ts';
import { RatchetError } from '../../core/errors.ts';
import { type AskedEnvironment, type OpenedEnvironment, withPythonEnvironment } from './opened.ts';

export interface EnvironmentReport {
  /** True without findings that are errors. */
  readonly ok: boolean;
  readonly findings: readonly CodeFinding[];
  /** The report as lines for people. */
  readonly lines: readonly string[];
}

/**
 * Made-up turns after which the prompt counts as too long for the model, which ends the rollout and leaves it to be
 * scored.
 */
const turnsMax = 256;
const rolloutDeadlineS = 120;

/**
 * Loads a Python environment, compares the methods it overrides with those of the installed verifiers, and generates
 * and scores one rollout with made-up answers. This tests the code, not the task.
 */
export async function checkPythonEnvironment(asked: AskedEnvironment): Promise<EnvironmentReport> {
  const { id, python } = asked;
  const title = `${id} ${python.version} with verifiers ${python.verifiers}, api ${python.api}`;
  const said: string[] = [];
  const findings: CodeFinding[] = [];
  try {
    await withPythonEnvironment(asked, async (opened) => {
      const { loaded, rows } = opened;
      const [train, heldOut] = [await rows('train'), await rows('eval')];
      said.push(`✓ loads: ${loaded.class}, ${train.length} examples to train on, ${heldOut.length} to evaluate on`);
      said.push(`✓ after a death: ${saysResume(resumingOf(loaded))}${whyAnew(loaded)}`);
      findings.push(...looksWrong(loaded, train.length), ...opened.notes().map(otherwise));
      findings.push(...(await opened.bridge.check({ env: opened.env })).findings);
      if (train[0] !== undefined) {
        const played = await tryOut(opened, train[0], python.source ?? python.module);
        said.push(...played.said);
        findings.push(...played.findings);
      }
    });
  } catch (error) {
    if (!(error instanceof RatchetError)) throw error;
    findings.push(ofLoading(error, asked));
  }
  const ok = findings.every(({ severity }) => severity !== 'error');
  return { ok, findings, lines: [title, ...said.map((line) => `  ${line}`), ...findings.flatMap(findingLines)] };
}

function whyAnew({ is_single_turn: isSingle, says_state_why: why }: LoadedEnvironment): string {
  return isSingle || !why ? '' : ` (${why})`;
}

function otherwise(says: string): CodeFinding {
  return { severity: 'warning', place: null, says, fix: '' };
}

function findingLines({ severity, place, says, fix }: CodeFinding): string[] {
  const [first = '', ...rest] = says.split('\n');
  const at = place === null ? '' : `${relative(place)}  `;
  return [`  ${severity === 'error' ? '✗' : '!'} ${at}${first}`, ...rest.map((line) => `    ${line}`), ...(fix === '' ? [] : [`    → ${fix}`])]; // prettier-ignore
}

function relative(place: string): string {
  const short = path.relative(process.cwd(), place);
  return short.startsWith('..') ? place : short;
}

function looksWrong({ reward_names: names, weights }: LoadedEnvironment, examples: number): CodeFinding[] {
  const finding = (says: string, fix: string): CodeFinding => ({ severity: 'error', place: null, says, fix });
  return [
    ...(examples > 0 ? [] : [finding('it has no examples to train on', 'give it a dataset with at least one row')]),
    ...(names.some((_, i) => weights[i] !== 0)
      ? []
      : [finding('no reward function has a weight, so every reward is 0', 'vf.Rubric(funcs=[…], weights=[1.0])')]),
  ];
}

function ofLoading(error: RatchetError, { python }: AskedEnvironment): CodeFinding {
  const [says = '', fix = ''] = error.message.split('. To mend it: ');
  const place = placeIn(error.message, python.source ?? python.module);
  return { severity: 'error', place, says: `it does not load: ${says}`, fix };
}

function manyTurns(turns: number): string {
  if (turns > turnsMax) return `${turnsMax} turns of made-up answers, which nothing had ended`;
  return turns === 1 ? 'one made-up answer' : `${turns} turns of made-up answers`;
}

interface Tried {
  readonly said: readonly string[];
  readonly findings: readonly CodeFinding[];
}

async function tryOut(opened: OpenedEnvironment, input: string, source: string): Promise<Tried> {
  const { bridge, loaded, env } = opened;
  const heard: WireMessage[] = [];
  const played: WirePlayedRow[] = [];
  let turns = 0;
  try {
    // Reward functions that compare rollouts get two.
    for (let i = 0; i < (loaded.requires_group ? 2 : 1); i++) {
      turns = 0;
      const onSample = (wanted: TurnRequest): Promise<SampledTurn> => {
        turns += 1;
        heard.push(...wanted.messages);
        if (turns > turnsMax)
          return Promise.reject(new RatchetError('PromptTooLong', 'There are no further made-up answers.'));
        return Promise.resolve(madeUp(wanted, turns));
      };
      played.push(await playOne(opened, { input, onSample }));
    }
  } catch (error) {
    if (!(error instanceof RatchetError)) throw error;
    return { said: [], findings: [failed('its rollout failed', error.message, source)] };
  }
  const { outcome, error } = played[0]!;
  if (error !== null && outcome !== 'policy_failure') return { said: [], findings: [failed('its rollout failed', textOf(error), source)] }; // prettier-ignore
  const unsaid = unsayable(heard);
  if (unsaid !== null) return { said: [], findings: [failed('its rollout failed', unsaid, source)] };
  const judged = await scored(bridge, env, played).catch((reason: unknown) => {
    if (reason instanceof RatchetError) return reason;
    throw reason;
  });
  if (judged === null) return { said: [`✓ plays: ${outcome} after ${manyTurns(turns)}`], findings: [] };
  if (judged instanceof RatchetError) return { said: [], findings: [failed('its rollout could not be scored', judged.message, source)] }; // prettier-ignore
  if ('error' in judged) return { said: [], findings: [failed('its rollout could not be scored', textOf(judged.error), source)] }; // prettier-ignore
  const metrics = Object.entries(judged.metrics).map(([name, value]) => `${name} ${value}`);
  const how = loaded.scoring === 'stored' ? 'from its stored row' : 'where it was played';
  const many = manyTurns(turns);
  return {
    said: [`✓ plays: ${outcome} after ${many}; scored ${how}: reward ${judged.reward} (${metrics.join(', ')})`],
    findings: [
      ...untrainable(heard),
      ...Object.entries(judged.raised ?? {}).map(([name, text]) => raised(name, text, source)),
    ],
  };
}

function playOne(
  { bridge, loaded, env }: OpenedEnvironment,
  { input, onSample }: { input: string; onSample: (wanted: TurnRequest) => Promise<SampledTurn> },
): Promise<WirePlayedRow> {
  const keep = loaded.requires_group && loaded.scoring === 'in_place';
  const how = { model: 'made-up', sampling: {}, with_tokens: false, deadline_s: rolloutDeadlineS, group: 'made-up' };
  const { signal } = new AbortController();
  return bridge.rollout({ env, input, ...how, score: false, keep }, { onSample, signal });
}

/** Why a run could not send it to the model; null if it can. */
function unsayable(messages: readonly WireMessage[]): string | null {
  try {
    for (const message of messages) chatMessage(message);
    return null;
  } catch (error) {
    if (error instanceof RatchetError) return error.message;
    throw error;
  }
}

/** What only a model behind an API can read. */
function untrainable(messages: readonly WireMessage[]): CodeFinding[] {
  const part = otherPart(messages.map(chatMessage));
  if (part === undefined) return [];
  const says = `its messages have a part of the type ${JSON.stringify(part)}: evaluations through an API send it, and nothing trains on it`;
  return [{ severity: 'warning', place: null, says, fix: '' }];
}

/** null when nothing can be scored on its own. */
async function scored(
  bridge: OpenedEnvironment['bridge'],
  env: string,
  played: readonly WirePlayedRow[],
): Promise<Score | null> {
  const [{ judged, live, scorable }] = played as readonly [WirePlayedRow];
  if (judged !== null) return judged;
  if (live === null && !scorable) return null;
  const rollouts = played.map((one) => (one.live === null ? { row: one.row } : { live: one.live }));
  const [score = null] = await bridge.score({ env, rollouts });
  return score;
}

function raised(name: string, traceback: string, source: string): CodeFinding {
  const last = traceback.trim().split('\n').at(-1) ?? '';
  return {
    severity: 'warning',
    place: placeIn(traceback, source),
    says: `the reward function ${name} threw, which counts as 0: ${last}`,
    fix: 'where an answer of a model may lead there, catch it and return the score that you mean',
  };
}

function failed(what: string, text: string, source: string): CodeFinding {
  return { severity: 'error', place: placeIn(text, source), says: `${what}: ${text}`, fix: '' };
}

function textOf({ type, message, traceback }: WireError): string {
  return `${type}: ${message}${traceback === '' ? '' : `\n${traceback.trim()}`}`;
}

/** The innermost place of a traceback that is in the package: file:line. `source`: its folder, or its module. */
function placeIn(traceback: string, source: string): string | null {
  const frames = [...traceback.matchAll(/File "([^"]+)", line (\d+)/g)];
  const own = frames.filter(([, file = '']) => file.startsWith(source + path.sep) || file.includes(`/${source}.py`) || file.includes(`/${source}/`)); // prettier-ignore
  const [, file, line] = own.at(-1) ?? [];
  return file === undefined ? null : `${file}:${line}`;
}

/** The first answer calls the first tool, if any; the others are text. */
function madeUp({ tools }: TurnRequest, turn: number): SampledTurn {
  const usage = { prompt_tokens: 1, completion_tokens: 1 };
  const [tool] = tools ?? [];
  if (tool && turn === 1) {
    const call = { id: 'call_1', ...madeUpCall(tool) };
    return { content: null, tool_calls: [call], finish_reason: 'tool_calls', usage, tokens: null };
  }
  return { content: 'A made-up answer.', tool_calls: [], finish_reason: 'stop', usage, tokens: null };
}

function madeUpCall(tool: WireTool): { readonly name: string; readonly arguments: string } {
  const { name = '', parameters } = (tool['function'] ?? {}) as { name?: string; parameters?: Parameters };
  const given = Object.entries(parameters?.properties ?? {}).map(([key, { type }]) => [key, values[type ?? ''] ?? 'x']);
  return { name, arguments: JSON.stringify(Object.fromEntries(given)) };
}

interface Parameters {
  readonly properties?: Readonly<Record<string, { readonly type?: string }>>;
}

/** Sample values by JSON schema type; any other type gets a text. */
const values: Readonly<Record<string, unknown>> = { integer: 1, number: 1, boolean: true, array: [], object: {} };
