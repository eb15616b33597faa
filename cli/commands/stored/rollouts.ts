import path from 'node:path';
import { Command } from '@commander-js/extra-typings';
import { RatchetError } from '../../../core/errors.ts';
import { describeEffects, type EffectCounts } from '../../../core/rl/rollout/effects.ts';
import {
  failedOutcomes,
  rewardedOutcomes,
  type ScoredGroup,
  type ScoredRollout,
} from '../../../core/rl/rollout/rollout.ts';
import type { ChatTokenizer } from '../../../engine/index.ts';
import { exportRollouts } from '../../stored/export-rollouts.ts';
import { findRunFolder, readStep } from '../../stored/run-place.ts';
import { readCount } from '../../typed/read-count.ts';
import { headStep, sampledSteps, scoredGroups } from '../../../runs/run-records.ts';
import type { RunPlace } from '../../../runs/run-access.ts';
import { tokenizerOf } from '../../../play/policy/stored-tokenizer.ts';
import { storeOption, withStore } from '../../typed/store-option.ts';
import { print } from '../../output/print.ts';
import { jsonText } from '../../output/plain-text.ts';

const outcomes: readonly string[] = [...rewardedOutcomes, ...failedOutcomes];

export const rolloutsCommand = new Command('rollouts')
  .description(
    'what the policy said in a step: the conversation, its reward and its parts, and the rewards of its group',
  )
  .argument('<run>')
  .option('--step <n>', 'default: the last committed step')
  .option('--env <name>', 'of this environment')
  .option('--outcome <outcome>', `one of ${outcomes.join(', ')}`)
  .option('--sort <by>', 'reward (best first), -reward (worst first), or group', 'group')
  .option('--limit <k>', 'at most this many rollouts', '10')
  .option('--json', 'one JSON object per rollout and line, tokens left out')
  .option(
    '--export <folder>',
    'write all that was sampled to train, or what was for --step, as verifiers writes evaluations: FOLDER/evals/ENV--RUN/…',
  )
  .option(...storeOption)
  .action(async (run, options) => {
    const place = await findRunFolder(run, options.store);
    if (options.export !== undefined) {
      const step = options.step === undefined ? null : readStep(options.step);
      const rounds = await exportRollouts(place, options.export, step);
      return print(
        `${rounds} sampling rounds are in ${path.join(options.export, 'evals')}; look at them: npx ratchet-rl eval tui ${options.export}`,
      );
    }
    const step = options.step === undefined ? await headStep(place) : readStep(options.step);
    const groups = await scoredGroups(place, step);
    if (groups.length === 0) throw await noRollouts(place, step, options.store);
    const found = chosen(groups, options);
    const shown = found.slice(0, readCount('--limit', options.limit));
    const tokenizer = await tokenizerOf(place);
    const told = shown.map((entry) => tell(entry, step, tokenizer));
    const lines = options.json
      ? told.map((entry) => jsonText(entry))
      : [...told.flatMap(describe), summary(found, shown.length, step, groups.length)];
    print(lines.join('\n'));
  });

interface RolloutsOptions {
  readonly step?: string;
  readonly env?: string;
  readonly outcome?: string;
  readonly sort: string;
  readonly limit: string;
  readonly json?: boolean;
  readonly export?: string;
  readonly store?: string;
}

interface Entry {
  readonly group: ScoredGroup;
  readonly rollout: ScoredRollout;
}

function chosen(
  groups: readonly ScoredGroup[],
  { env, outcome, sort }: Pick<RolloutsOptions, 'env' | 'outcome' | 'sort'>,
): Entry[] {
  const environments = [...new Set(groups.map(({ environment }) => environment))];
  if (env !== undefined && !environments.includes(env)) throw unknown('--env', env, environments);
  if (outcome !== undefined && !outcomes.includes(outcome)) throw unknown('--outcome', outcome, outcomes);
  const found = groups
    .filter(({ environment }) => env === undefined || environment === env)
    .flatMap((group) => group.rollouts.map((rollout) => ({ group, rollout })))
    .filter(({ rollout }) => outcome === undefined || rollout.outcome === outcome);
  if (sort === 'group') return found;
  if (sort !== 'reward' && sort !== '-reward') throw unknown('--sort', sort, ['reward', '-reward', 'group']);
  const sign = sort === 'reward' ? 1 : -1;
  // Rollouts without a reward come last in either order.
  const value = ({ rollout: { reward } }: Entry): number =>
    reward === null ? Number.NEGATIVE_INFINITY : sign * reward;
  return found.toSorted((a, b) => value(b) - value(a) || a.group.ordinal - b.group.ordinal);
}

/** `ratchet rollouts --json`: one of these a line. */
interface ToldRollout {
  readonly step: number;
  readonly group: number;
  readonly index: number;
  readonly environment: string;
  readonly exampleId: number;
  readonly policyStep: number;
  readonly outcome: string;
  readonly reward: number | null;
  /** Every reward function, unweighted. */
  readonly parts: Readonly<Record<string, number>>;
  /** Rewards of its group, by index; null = without a reward. */
  readonly groupRewards: readonly (number | null)[];
  readonly turns: readonly {
    readonly prompt: string;
    readonly completion: string;
    readonly tokens: number;
    readonly finishReason: string;
    /** The versions it began and ended with. */
    readonly policySteps: readonly [number, number];
  }[];
  readonly error: string | null;
  /** Its calls with an effect, by kind and outcome; null without any. */
  readonly effects: EffectCounts | null;
}

function tell({ group, rollout }: Entry, step: number, tokenizer: ChatTokenizer | null): ToldRollout {
  return {
    step,
    group: group.ordinal,
    index: rollout.index,
    environment: group.environment,
    exampleId: group.exampleId,
    policyStep: group.policyStep,
    outcome: rollout.outcome,
    reward: rollout.reward,
    parts: rollout.metrics,
    groupRewards: group.rollouts.map(({ reward }) => reward),
    turns: rollout.turns.map(
      ({ promptTokenIds, text, tokenIds, finishReason, policyStep: begun, policyStepEnd: ended = begun }) => ({
        prompt: tokenizer?.decode(promptTokenIds, { skipSpecialTokens: false }) ?? `(${promptTokenIds.length} tokens)`,
        completion: text,
        tokens: tokenIds.length,
        finishReason,
        policySteps: [begun, ended] as const,
      }),
    ),
    error: rollout.error ?? null,
    effects: rollout.effects ?? null,
  };
}

/** The last turn's prompt holds the whole conversation before it. */
function describe(told: ToldRollout): string[] {
  const { group, index, environment, exampleId, policyStep, outcome, reward, parts, groupRewards, turns, error } = told;
  const { effects } = told;
  const siblings = groupRewards.map((value, i) => (i === index ? `[${figure(value)}]` : figure(value))).join(' ');
  const last = turns.at(-1);
  const newest = Math.max(policyStep, ...turns.flatMap(({ policySteps }) => policySteps));
  const versions = newest === policyStep ? `v${policyStep}` : `v${policyStep} to v${newest}`;
  const tokens = turns.reduce((sum, turn) => sum + turn.tokens, 0);
  return [
    `group ${group} · rollout ${index} · ${environment} example ${exampleId} · ${versions} · ${outcome} · ${turns.length === 1 ? '1 turn' : `${turns.length} turns`}, ${tokens} tokens`,
    `  reward ${figure(reward)}  ${Object.entries(parts)
      .map(([name, value]) => `${name} ${figure(value)}`)
      .join('  ')}`.trimEnd(),
    `  group  ${siblings}`,
    ...(last ? [...block('  > ', last.prompt), ...block('  < ', last.completion)] : ['  (no turn was finished)']),
    ...(effects === null ? [] : [`  effects ${describeEffects(effects)}`]),
    ...(error === null ? [] : block('  ! ', error)),
    '',
  ];
}

function block(prefix: string, text: string): string[] {
  return printable(text)
    .split('\n')
    .map((line) => prefix + line);
}

/** Escapes control characters, which could move the cursor. */
function printable(text: string): string {
  return text.replaceAll(/\p{Cc}/gu, (c) =>
    c === '\n' || c === '\t' ? c : `\\x${c.charCodeAt(0).toString(16).padStart(2, '0')}`,
  );
}

function summary(found: readonly Entry[], shown: number, step: number, groups: number): string {
  const rewards = found.flatMap(({ rollout: { reward } }) => (reward === null ? [] : [reward]));
  const mean =
    rewards.length === 0 ? '' : `, mean reward ${figure(rewards.reduce((sum, r) => sum + r, 0) / rewards.length)}`;
  if (found.length === 0) return `step ${step}: no rollout of its ${groups} groups matches`;
  return `step ${step}: ${shown} of ${found.length} rollouts that match, ${groups} groups in all${mean}`;
}

function figure(value: number | null): string {
  return value === null ? '–' : value.toFixed(3).replace(/\.?0+$/, '');
}

async function noRollouts(place: RunPlace, step: number, store: string | undefined): Promise<RatchetError> {
  const head = await headStep(place);
  const why =
    step === 0
      ? 'Step 0 is the first version: nothing is sampled for it.'
      : step > head
        ? `The run is at step ${head}.`
        : 'What was sampled for it is not in the store any more, or was sampled for the step before.';
  const others = await sampledSteps(place);
  const newest = others.at(-1);
  const instead =
    newest === undefined
      ? 'Nothing that it sampled is scored yet.'
      : `There are of ${others.length === 1 ? `step ${newest}` : `steps ${others[0]} to ${newest}`}${newest > head ? ', which is under way' : ''}: ${withStore(`npx ratchet-rl rollouts ${place.name} --step ${newest}`, store)}`;
  return new RatchetError(
    'RunNotFound',
    `There are no scored rollouts of step ${step} of ${place.name}. ${why} ${instead}`,
  );
}

function unknown(option: string, given: string, known: readonly string[]): RatchetError {
  return new RatchetError(
    'ConfigInvalid',
    `${option}: expected one of ${known.join(', ')}; got ${JSON.stringify(given)}.`,
  );
}
