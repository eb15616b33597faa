import { type ArgumentHelp, watchArguments } from '../../backends/environments/args.ts';
import { importEnvironment } from '../../backends/environments/load.ts';
import { demonstratingPolicy, playAndScore, scriptedPolicy } from '../../backends/environments/scripted.ts';
import { conversationOf } from '../../backends/environments/score.ts';
import type { Environment } from '../../backends/environments/types.ts';
import { saysResume } from '../../play/after-death.ts';
import { RatchetError } from '../../core/errors.ts';
import { randomStream } from '../../core/random.ts';
import { whereItFailed } from '../../core/rl/failures.ts';
import type { ChatMessage, Example, ScoredRollout, ToolSchema } from '../../core/rl/rollout/rollout.ts';
import type { JsonValue } from '../../config/run-spec.ts';
import { alignedRows } from '../output/table.ts';
import { toldWhenSlow } from '../output/told-when-slow.ts';

export interface InfoOptions {
  /** Index into `dataset`, or into `evalDataset` with `heldOut`. */
  readonly example: number;
  readonly heldOut: boolean;
}

/** Text of `ratchet env info`: loads the environment, and runs one example with its own demonstration. */
export async function environmentInfo(
  id: string,
  args: Readonly<Record<string, JsonValue>>,
  options: InfoOptions,
): Promise<string> {
  const { loaded: environment, args: known } = await watchArguments(() =>
    toldWhenSlow(id, async () => (await importEnvironment(id)).loadEnvironment(args)),
  );
  const dataset = options.heldOut ? environment.evalDataset : environment.dataset;
  if (options.example >= dataset.length) {
    const kind = options.heldOut ? 'held-out examples' : 'examples to train on';
    throw new RatchetError(
      'ConfigInvalid',
      `--example: ${environment.name} has ${dataset.length} ${kind}, counted from 0; received ${options.example}.`,
    );
  }
  const example = dataset.at(options.example);
  const { dataset: train, evalDataset, rubric, tools = [], warnings = [] } = environment;
  return [
    `${environment.name}  (${id})`,
    ...warnings.map((warning) => `  warning       ${warning}`),
    `  examples      ${train.length} to train on, ${evalDataset.length} held out`,
    `  rollouts      ${environment.isSingleTurn ? 'one answer' : 'several turns'}, ${environment.isDeterministic ? 'deterministic' : 'not deterministic'}`,
    `  after a death ${saysResume(environment)}`,
    ...alignedRows('arguments', known.map(argumentRow)),
    ...alignedRows(
      'rewards',
      rubric.functions.map(({ name, weight }) => [name, weight === 0 ? 'metric only' : `weight ${weight}`]),
    ),
    ...alignedRows('tools', tools.map(toolRow)),
    '',
    `Example ${options.example}${options.heldOut ? ' of those held out' : ''}, right answer ${JSON.stringify(example.answer)}:`,
    ...(await played(environment, example)),
  ].join('\n');
}

/** Report of `ratchet env check` on an environment in TypeScript. Throws if it does not load. */
export async function checkOwnEnvironment(
  id: string,
  args: Readonly<Record<string, JsonValue>>,
): Promise<{ readonly lines: readonly string[] }> {
  const environment = await toldWhenSlow(id, async () => (await importEnvironment(id)).loadEnvironment(args));
  const { name, dataset, evalDataset, warnings = [] } = environment;
  return {
    lines: [
      `${name}  (${id})`,
      `  ✓ loads: ${dataset.length} examples to train on, ${evalDataset.length} to evaluate on`,
      `  ✓ after a death: ${saysResume(environment)}`,
      ...warnings.map((warning) => `  ! ${warning}`),
    ],
  };
}

/** One rollout of the example, with the environment's own demonstration or an empty answer. */
async function played(environment: Environment, example: Example): Promise<string[]> {
  const demonstration = await demonstratingPolicy(environment, example, randomStream('env info', example.id));
  const rollout = await playAndScore(environment, example, demonstration ?? scriptedPolicy(() => ''));
  return [
    ...conversationOf(example, rollout.turns).flatMap(messageLines),
    '',
    demonstration
      ? "That was the environment's own demonstration, scored with its rubric:"
      : 'The environment gives no demonstrations; an empty answer is scored:',
    scoreLine(environment, rollout),
  ];
}

function scoreLine({ rubric }: Environment, { outcome, reward, metrics, error }: ScoredRollout): string {
  if (reward === null) return `  ${outcome}, no reward: ${whereItFailed(error ?? '')}`;
  const parts = rubric.functions
    .filter(({ weight }) => weight !== 0)
    .map(({ name, weight }) => `${weight} × ${name} ${round(metrics[name]!)}`);
  const others = rubric.functions
    .filter(({ weight }) => weight === 0)
    .map(({ name }) => `${name} ${round(metrics[name]!)}`);
  const also = others.length === 0 ? '' : `   (${others.join(', ')})`;
  return `  ${outcome}, reward ${round(reward)} = ${parts.join(' + ') || '0'}${also}`;
}

/** Most characters of a message that are shown: lines may be long. */
const messageCharsMax = 1_200;

function messageLines({ role, content }: ChatMessage): string[] {
  const shown =
    content.length > messageCharsMax ? `${content.slice(0, messageCharsMax)} … (${content.length})` : content;
  const [first = '', ...rest] = shown.split('\n');
  return [`  ${role.padEnd(10)} ${first}`, ...rest.map((line) => `  ${' '.repeat(10)} ${line}`)];
}

function argumentRow({ name, defaultValue, kind }: ArgumentHelp): string[] {
  return [name, defaultValue === undefined ? '–' : `= ${defaultValue}`, kind];
}

function toolRow({ function: { name, description, parameters } }: ToolSchema): string[] {
  const properties = Object.keys(parameters['properties'] ?? {});
  return [`${name}(${properties.join(', ')})`, description.split('\n')[0]!];
}

function round(value: number): string {
  return String(Math.round(value * 1000) / 1000);
}
