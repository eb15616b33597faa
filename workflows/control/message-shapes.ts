import {
  anything,
  eitherBy,
  fieldsOf,
  flag,
  lineOfText,
  listOf,
  number,
  oneOf,
  optional,
  orNull,
  ranges,
  recordOf,
  type Shape,
  text,
  whole,
  wholeFrom0,
} from '../../core/shape.ts';
import type { EvalSpec } from '../../config/run-spec.ts';

/*
 * Shapes of messages to workflows. Updates come from people and are checked strictly. Signals come from other parts of Ratchet, possibly of
 * another version: only the fields that are used are checked, and more are allowed.
 */

export const objectRef = fieldsOf({ key: text, sha256: text, bytes: whole });
export const runHandle = fieldsOf({ name: text, store: text, lineage: text, spec: objectRef, attempt: whole });
export const policyVersion = fieldsOf({ step: whole, digest: text, weights: text, file: objectRef, sums: objectRef });

const lost = fieldsOf({ recoveries: whole, rollouts: whole, tokens: whole, seconds: number });
const rangesByState = recordOf(ranges, 'ordinals by how their groups ended');
const failures = fieldsOf({
  rollouts: whole,
  failedRollouts: whole,
  failedGroups: whole,
  failedGroupsInRow: whole,
  isRowWhole: flag,
  causes: recordOf(fieldsOf({ count: whole, first: text }), 'causes'),
  overlongRollouts: whole,
  policyFailures: whole,
});
const filtered = fieldsOf({
  kept: fieldsOf({
    scored: objectRef,
    policyStep: whole,
    ordinals: ranges,
    oldest: optional(listOf(number)),
    sizes: optional(listOf(number)),
  }),
  ended: rangesByState,
  solved: fieldsOf({ all: whole, none: whole, some: whole }),
  means: optional(listOf(number)),
  failures: optional(failures),
  environments: optional(recordOf(fieldsOf({ failures, means: listOf(number) }), 'figures by environment')),
  size: optional(number),
});
const playedPart = fieldsOf({
  scored: objectRef,
  filtered,
  ordinals: ranges,
  rollouts: whole,
  tokens: whole,
  generateS: number,
  scoreS: number,
  occupancy: orNull(number),
});
const parts = listOf(playedPart);
const played = eitherBy(
  (value) =>
    'failed' in value
      ? fieldsOf({ failed: fieldsOf({ message: text, type: text }) })
      : fieldsOf({ parts, adopted: whole, lost }),
  'the rollouts of a round, or why it failed',
);

/** A child's notice that it has ended; `result` is the shape of the fields that are used. */
const notice = (result: Shape): Shape =>
  eitherBy(
    (value) => fieldsOf('failed' in value ? { workflowId: text, failed: text } : { workflowId: text, result }),
    'the result of a workflow, or why it failed',
  );
export const regressionActions = ['flag', 'pause', 'stop'] as const satisfies readonly EvalSpec['onRegression'][];
const evaluationPlace = fieldsOf({ store: text, name: text, prefix: text });
/** A figure that is not a number arrives as null. */
const figures = recordOf(anything, 'figures by name');

/** Shapes of the arguments, by signal name. */
export const signalShapes = {
  'trainer-leased': [fieldsOf({ epoch: whole, holder: text })],
  'store-missed': [fieldsOf({ worker: text, why: orNull(text) })],
  'groups-ended': [fieldsOf({ lineage: text, parts })],
  'rounds-played': [fieldsOf({ lineage: text, played })],
  'rollouts-wait': [fieldsOf({ reason: text })],
  'evaluation-ended': [
    notice(
      fieldsOf({
        environment: text,
        model: text,
        place: evaluationPlace,
        folder: text,
        rollouts: whole,
        failed: whole,
        avgReward: orNull(number),
        avgMetrics: figures,
        passAtK: figures,
        failures: listOf(text),
      }),
    ),
  ],
  'prompt-branch-ended': [
    notice(
      fieldsOf({
        environment: text,
        place: evaluationPlace,
        folder: text,
        best: whole,
        bestPrompt: orNull(objectRef),
        bestScore: orNull(number),
        startScore: orNull(number),
        isImproved: flag,
        candidates: whole,
        calls: whole,
        stopReason: text,
      }),
    ),
  ],
  'regression-found': [
    fieldsOf({
      environment: text,
      version: text,
      step: whole,
      regression: fieldsOf({
        isWorse: flag,
        isRepeated: optional(flag),
        best: fieldsOf({ step: whole, name: text, reward: number }),
        reward: number,
        difference: fieldsOf({ mean: number, low: number, high: number }),
        examples: whole,
      }),
      action: oneOf(...regressionActions),
    }),
  ],
  'chunk-left': [whole, whole],
  play: [
    listOf(
      fieldsOf({
        round: fieldsOf({ step: whole, first: whole, last: whole, policyStep: whole, leases: objectRef }),
        chunks: listOf(
          fieldsOf({
            chunk: fieldsOf({ index: whole, count: whole, groups: whole, ordinals: ranges }),
            only: optional(ranges),
            label: text,
          }),
        ),
        workers: whole,
        takesNewest: flag,
      }),
    ),
  ],
  'run-standing': [
    fieldsOf({
      run: text,
      told: whole,
      team: text,
      priority: number,
      labels: recordOf(text, 'labels by name'),
      startAt: orNull(number),
      turn: whole,
      state: oneOf('waits', 'holds', 'none'),
      trainer: orNull(text),
      lost: orNull(text),
      store: optional(text),
    }),
  ],
  'trainer-standing': [
    fieldsOf({
      trainer: text,
      labels: recordOf(text, 'labels by name'),
      heldBy: orNull(text),
      leaves: flag,
      kept: optional(
        fieldsOf({
          settings: fieldsOf({
            slice: number,
            aging: number,
            teams: recordOf(fieldsOf({ quota: orNull(whole), weight: number }), 'settings by team'),
          }),
          setAt: whole,
        }),
      ),
    }),
  ],
  turn: [fieldsOf({ pool: text, turn: whole, trainer: text, giveBack: orNull(text), asks: flag })],
  'give-up': [listOf(whole)],
  resume: [],
  leave: [],
} as const satisfies Readonly<Record<string, readonly Shape[]>>;

/** Bounded, because the memo keeps the reason and it is shown repeatedly. */
const reasonCharsMax = 2_000;
const reason = lineOfText(`a reason in one line of at most ${reasonCharsMax} characters`, reasonCharsMax);
const environmentName = lineOfText('the name of an environment', reasonCharsMax);

/** Names and shapes of the arguments, by update name. */
export const updateShapes = {
  pause: { reason: optional(orNull(reason)) },
  stop: {},
  resume: {},
  set: { settings: recordOf(anything, 'settings with their new values, an object such as {"learning_rate": 0.0005}') },
  rewind: { step: wholeFrom0('a committed step') },
  'gepa-branch': { environment: optional(orNull(environmentName)) },
  'adopt-prompt': { environment: optional(orNull(environmentName)) },
  'raise-budget': { max_calls: whole },
} as const satisfies Readonly<Record<string, Readonly<Record<string, Shape>>>>;

/** Example argument in JSON, by update name. */
export const updateExamples: Readonly<Record<keyof typeof updateShapes, string | null>> = {
  pause: '"to look at it"',
  stop: null,
  resume: null,
  set: '{"learning_rate": 0.0005}',
  rewind: '12',
  'gepa-branch': '"reverse-text"',
  'adopt-prompt': '"reverse-text"',
  'raise-budget': '500',
};
