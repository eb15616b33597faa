import { layout } from '../runs/layout.ts';
import { curvesOf } from '../runs/curves.ts';
import { currentLineage, type RunPlace, storeOf } from '../runs/run-access.ts';
import type { EvalFigures } from '../workflows/control/messages.ts';
import { onOneLine } from './plain-text.ts';
import { lineageOfStep } from './run-records.ts';
import { sparkline } from './view/lines.ts';

/** What a run made of its model, for people: held-out examples before and after, the curve, and how to talk to it. */

/** Not the best ones: the first of those that are held out. */
const examplesShown = 3;
const textCharsShown = 70;
const curveColumns = 40;

/** Lines for the end of a run. */
export async function whatWasLearned(run: RunPlace): Promise<string[]> {
  const { trend, evals } = await curvesOf({ ...run, lineage: await currentLineage(run) }, Infinity);
  const rewards = trend.map(([, reward]) => reward);
  const [begin, end] = [rewards.find((reward) => reward !== null), rewards.findLast((reward) => reward !== null)];
  return [
    ...(await beforeAndAfter(run, evals)),
    ...(begin == null || end == null || rewards.length < 2
      ? []
      : [`curve   ${sparkline(rewards, curveColumns)}  reward by step, ${begin.toFixed(2)} … ${end.toFixed(2)}`]),
    `chat    talk to it: npx ratchet chat ${run.name}`,
  ];
}

async function beforeAndAfter(run: RunPlace, evals: readonly EvalFigures[]): Promise<string[]> {
  const environment = evals[0]?.environment;
  const of = evals.filter((one) => one.environment === environment);
  const [first, last] = [of[0], of.at(-1)];
  if (environment === undefined || !first || !last || first.step === last.step) return [];
  const [before, after] = [await heldOutRows(run, first), await heldOutRows(run, last)];
  const shown = before.slice(0, examplesShown).flatMap((row) => {
    const then = after.find(({ example_id: id }) => id === row.example_id);
    return then === undefined ? [] : [said(row, then)];
  });
  const greedy = `greedy ${figure(first.greedyReward)} → ${figure(last.greedyReward)}`;
  return [
    `learned ${environment}, held out: reward ${figure(first.reward)} → ${figure(last.reward)}, ${greedy}`,
    ...shown.map((line) => `        ${line}`),
  ];
}

/** As `core/rl/results.ts` writes it; nothing in it is trusted but what is looked at here. */
interface Row {
  readonly example_id: number;
  readonly prompt: readonly Message[];
  readonly completion: readonly Message[];
}

interface Message {
  readonly role?: unknown;
  readonly content?: unknown;
}

/** What was decoded greedily, of one version. */
async function heldOutRows(run: RunPlace, { environment, step }: EvalFigures): Promise<Row[]> {
  const place = layout.evaluation(await lineageOfStep(run, step), environment, run.name, step, { variant: 'greedy' });
  const bytes = await storeOf(run).read(`${place}results.jsonl`);
  if (!bytes) return []; // it may have been removed, or not be written yet
  const lines = Buffer.from(bytes).toString('utf8').split('\n');
  return lines.flatMap((line) => (line === '' ? [] : rowIn(JSON.parse(line))));
}

function rowIn(value: unknown): Row[] {
  const row = value as Partial<Row> | null;
  return Array.isArray(row?.prompt) && Array.isArray(row.completion) ? [row as Row] : [];
}

function said(before: Row, after: Row): string {
  const answer = ({ completion }: Row): string => textOf(completion.findLast(({ role }) => role === 'assistant'));
  return `"${textOf(before.prompt.at(-1))}"  before: "${answer(before)}"  after: "${answer(after)}"`;
}

function textOf(message: Message | undefined): string {
  const text = onOneLine(typeof message?.content === 'string' ? message.content : '');
  return text.length <= textCharsShown ? text : `${text.slice(0, textCharsShown)}…`;
}

function figure(value: number | null): string {
  return value?.toFixed(3) ?? '–';
}
