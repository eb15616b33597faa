import { RatchetError } from '../errors.ts';
import { tracebackCharsInHistoryMax } from '../limits.ts';
import type { FailedOutcome, ScoredGroup, ScoredRollout } from './rollout/rollout.ts';

/** Causes of failed rollouts, their share, and the point at which there are too many to train on. */

/** Failed rollouts of one cause: their number, and the message of the first. */
export interface FailureCount {
  readonly count: number;
  readonly first: string;
}
export type FailureCounts = { readonly [outcome in FailedOutcome]?: FailureCount };

/** Failures in one round, or in several. */
export interface RoundFailures {
  readonly rollouts: number;
  readonly failedRollouts: number;
  /** Groups with too few rollouts left to train on. */
  readonly failedGroups: number;
  /** Failed groups in a row at the end, by ordinal. */
  readonly failedGroupsInRow: number;
  /** Whether that row starts at the first group. */
  readonly isRowWhole: boolean;
  readonly causes: FailureCounts;
  /** Failed rollouts whose first prompt was too long. */
  readonly overlongRollouts: number;
  /** Failed rollouts that became too old; absent in older records. */
  readonly staleRollouts?: number;
  /** Failed rollouts that ran out of time; absent in older records. */
  readonly timedOutRollouts?: number;
  /** Rollouts in which the policy itself failed, with a reward. */
  readonly policyFailures: number;
}

export const noFailures: RoundFailures = {
  rollouts: 0,
  failedRollouts: 0,
  failedGroups: 0,
  failedGroupsInRow: 0,
  isRowWhole: true,
  causes: {},
  overlongRollouts: 0,
  staleRollouts: 0,
  timedOutRollouts: 0,
  policyFailures: 0,
};

/** An error's message and its position; the further frames are in the stored rollout. */
export function whereItFailed(error: string): string {
  const lines = error.split('\n');
  const firstFrame = lines.findIndex((line) => /^\s+at /.test(line));
  const text = firstFrame === -1 ? error : lines.slice(0, firstFrame + 1).join('\n');
  return text.length <= tracebackCharsInHistoryMax ? text : `${text.slice(0, tracebackCharsInHistoryMax - 1)}…`;
}

export function countOutcomes(rollouts: readonly ScoredRollout[]): FailureCounts {
  const causes: Partial<Record<FailedOutcome, FailureCount>> = {};
  for (const rollout of rollouts) {
    if (rollout.reward !== null) continue;
    const known = causes[rollout.outcome];
    const first = known?.first ?? whereItFailed(rollout.error ?? '');
    causes[rollout.outcome] = { count: (known?.count ?? 0) + 1, first };
  }
  return causes;
}

/**
 * Whether too few of a group's rollouts are rewarded to train on it. A failed rollout costs only itself: the others are
 * trained on, with themselves as the baseline, as in prime-rl (`iter_trainable_traces`, orchestrator/types.py). Below
 * half of the group (the default), mostly easy rollouts would be left, since hard ones take long and time out; and a
 * single reward has no baseline.
 */
export function isLost({ rollouts }: Pick<ScoredGroup, 'rollouts'>, minGroupSize: number | null = null): boolean {
  const rewarded = rollouts.filter(({ reward }) => reward !== null).length;
  return rewarded < Math.max(minGroupSize ?? rollouts.length / 2, Math.min(2, rollouts.length));
}

/**
 * Counts failures in scored groups. A group has failed if it is lost to them. An overlong first prompt is its example's
 * fault, not the infrastructure's, and verifiers' trainer leaves such examples out: a group that is only lost to those
 * counts neither as failed nor as trained. The same holds for one that became too old.
 */
export function countFailures(groups: readonly ScoredGroup[], minGroupSize: number | null = null): RoundFailures {
  const inOrder = groups.toSorted((a, b) => a.ordinal - b.ordinal);
  const causes = countOutcomes(inOrder.flatMap((group) => group.rollouts));
  let [rollouts, failedRollouts, failedGroups, failedGroupsInRow, policyFailures] = [0, 0, 0, 0, 0];
  let [overlongRollouts, staleRollouts, timedOutRollouts, isRowWhole] = [0, 0, 0, true];
  for (const group of inOrder) {
    const failed = group.rollouts.filter(({ reward }) => reward === null).length;
    const overlong = group.rollouts.filter(({ outcome }) => outcome === 'overlong_prompt').length;
    const stale = group.rollouts.filter(({ outcome }) => outcome === 'stale').length;
    overlongRollouts += overlong;
    staleRollouts += stale;
    timedOutRollouts += group.rollouts.filter(({ outcome }) => outcome === 'timeout').length;
    const isTrained = !isLost(group, minGroupSize);
    const isBroken = !isTrained && failed > overlong + stale;
    rollouts += group.rollouts.length;
    failedRollouts += failed;
    policyFailures += group.rollouts.filter(({ outcome }) => outcome === 'policy_failure').length;
    failedGroups += isBroken ? 1 : 0;
    failedGroupsInRow = isTrained ? 0 : failedGroupsInRow + (isBroken ? 1 : 0);
    isRowWhole &&= !isTrained;
  }
  return {
    rollouts,
    failedRollouts,
    failedGroups,
    failedGroupsInRow,
    isRowWhole,
    causes,
    overlongRollouts,
    staleRollouts,
    timedOutRollouts,
    policyFailures,
  };
}

/** The sum of two parts, the earlier first. */
export function addFailures(earlier: RoundFailures, later: RoundFailures): RoundFailures {
  const causes: Partial<Record<FailedOutcome, FailureCount>> = { ...earlier.causes };
  for (const [outcome, { count, first }] of Object.entries(later.causes) as [FailedOutcome, FailureCount][]) {
    const known = causes[outcome];
    causes[outcome] = { count: (known?.count ?? 0) + count, first: known?.first ?? first };
  }
  return {
    rollouts: earlier.rollouts + later.rollouts,
    failedRollouts: earlier.failedRollouts + later.failedRollouts,
    failedGroups: earlier.failedGroups + later.failedGroups,
    failedGroupsInRow: later.failedGroupsInRow + (later.isRowWhole ? earlier.failedGroupsInRow : 0),
    isRowWhole: earlier.isRowWhole && later.isRowWhole,
    causes,
    overlongRollouts: earlier.overlongRollouts + later.overlongRollouts,
    staleRollouts: (earlier.staleRollouts ?? 0) + (later.staleRollouts ?? 0),
    timedOutRollouts: (earlier.timedOutRollouts ?? 0) + (later.timedOutRollouts ?? 0),
    policyFailures: earlier.policyFailures + later.policyFailures,
  };
}

/** Keeps only the row of failed groups at the end, which the next step may continue. */
export function onlyRow({ failedGroupsInRow, causes }: RoundFailures): RoundFailures {
  return failedGroupsInRow === 0 ? noFailures : { ...noFailures, failedGroupsInRow, causes };
}

export interface BreakerLimits {
  readonly maxFailedShare: number;
  readonly maxFailedGroups: number;
}

/** A single group says nothing about the infrastructure: its example may be to blame. */
const failedGroupsMin = 2;

/**
 * The reason to pause the run; null if there is none. A timeout is no failure of the infrastructure, so the share
 * leaves it out. But groups that are lost to timeouts alone, one after another, mean that something hangs.
 */
export function breakerReason(failures: RoundFailures, limits: BreakerLimits): string | null {
  const { failedGroups, failedGroupsInRow, overlongRollouts, staleRollouts = 0, timedOutRollouts = 0 } = failures;
  const excused = overlongRollouts + staleRollouts + timedOutRollouts;
  const rollouts = failures.rollouts - excused;
  const failedRollouts = failures.failedRollouts - excused;
  if (Math.max(failedGroups, failedGroupsInRow) < failedGroupsMin) return null;
  if (failedRollouts > limits.maxFailedShare * rollouts) {
    const percent = Math.round((failedRollouts / rollouts) * 100);
    return `${failedRollouts} of ${rollouts} rollouts failed (${percent}%, [breaker] max_failed_share is ${limits.maxFailedShare})`;
  }
  if (failedGroupsInRow >= limits.maxFailedGroups) {
    return `${failedGroupsInRow} groups in a row failed ([breaker] max_failed_groups is ${limits.maxFailedGroups})`;
  }
  return null;
}

/**
 * The reason to pause a run with several environments. Each is judged by itself first: one that fails entirely is a
 * small share of a round if it is drawn rarely, and its groups never follow one another there.
 */
export function breakerAmong(
  all: RoundFailures,
  environments: ReadonlyMap<string, RoundFailures>,
  limits: BreakerLimits,
): { readonly reason: string; readonly environment: string | null; readonly causes: FailureCounts } | null {
  for (const [environment, failures] of environments) {
    const reason = breakerReason(failures, limits);
    if (reason !== null) return { reason: `${environment}: ${reason}`, environment, causes: failures.causes };
  }
  const reason = breakerReason(all, limits);
  return reason === null ? null : { reason, environment: null, causes: all.causes };
}

/** Remedies for running out of memory, by the process that did. */
export const memoryRemedies = {
  inference:
    'fewer rollouts at once (batch_size, oversampling_factor), smaller [sampling] max_tokens, [lora], a smaller [trainer] micro_batch_size where both share a device, or more memory for the server',
  trainer:
    'a smaller [trainer] micro_batch_size, fewer rollouts (batch_size), smaller [sampling] max_tokens, [lora], or more memory for the worker of the role train',
} as const;

/** Each cause in words for people, and its remedy. */
const causeWords: Readonly<Record<FailedOutcome, readonly [what: string, remedy: string]>> = {
  infra_failure: ['environment errors', ''],
  judge_failure: ['reward functions that failed', ''],
  timeout: [
    'not finished in time',
    'raise generation_timeout or the timeout of its [[env]], or lower [sampling] max_tokens; on_timeout = "truncate" trains what there is',
  ],
  stale: ['grown too old while they were played', 'raise max_off_policy_steps, or lower max_async_level'],
  cancelled: ['cancelled', ''],
  oom: ['out of memory', memoryRemedies.inference],
  overlong_prompt: [
    'prompts too long',
    'shorten them, raise max_prompt_len where it is set, or give the server a longer context',
  ],
  in_doubt: [
    'calls that are made only once, begun and without an answer',
    'look at their other side; a call that the other side knows by a key may be declared keyed',
  ],
  rejected: ['refused by the inference server', ''],
};

/** One sentence per cause, the most frequent first: its number, the first one's message, and a remedy if known. */
export function describeFailures(causes: FailureCounts): string[] {
  return (Object.entries(causes) as [FailedOutcome, FailureCount][])
    .toSorted(([, a], [, b]) => b.count - a.count)
    .map(([outcome, { count, first }]) => {
      const [what, remedy] = causeWords[outcome];
      const said = first === '' ? '' : `, the first: ${first}`;
      return `${count} × ${what} (${outcome})${said}${remedy === '' ? '' : ` [${remedy}]`}`;
    });
}

const outOfMemoryShapes: readonly RegExp[] = [
  /\bout of memory\b/i, // CUDA, vLLM, V8's heap, Linux
  /\bOutOfMemory/, // torch, Ray, ours
  /\bbad_alloc\b/,
  /failed to allocate memory/i, // ONNX Runtime
  /\bcannot allocate memory\b|\bENOMEM\b/i,
  /\bMemoryError\b/, // Python
  /no available memory for the cache blocks/i, // vLLM
  /\bOOM[- ]?killed\b|\boom-kill/i,
  /ERR_WORKER_OUT_OF_MEMORY/,
];

/**
 * Messages of Node, containers, Python, torchrun and shells about a killed process. The kernel kills the largest
 * process when memory runs out; people kill any.
 */
const killedShapes: readonly RegExp[] = [
  /(?:killed by (?:signal )?|died with <Signals\.)SIGKILL\b|\bSignal 9 \(SIGKILL\)/i,
  /\bexit(?:ed)?(?: with)?(?: ?code| status)?\s{0,8}[:=]?\s{0,8}(?:137|-9)(?!\d)/i,
  /^(?:.*: line \d+:\s+\d+ )?Killed\b(?:\s{2,}|$)/m,
];

/** Whether a failure's words say that memory ran out, in whichever runtime. */
export function saysOutOfMemory(text: string): boolean {
  return saysKilled(text) || namesMemory(text);
}

/** Whether only the exit status shows a kill: then any process may have done it. */
export function saysOnlyKilled(text: string): boolean {
  return saysKilled(text) && !namesMemory(text);
}

function saysKilled(text: string): boolean {
  return killedShapes.some((shape) => shape.test(text));
}

function namesMemory(text: string): boolean {
  return outOfMemoryShapes.some((shape) => shape.test(text));
}

const ncclShapes: readonly RegExp[] = [
  // PyTorch, vLLM; the output of NCCL_DEBUG=INFO is full of harmless failed attempts.
  /\bNCCL\b(?! (?:INFO|TRACE|VERSION)\b)[^\n]{0,80}\b(?:error|fail|time[d ]?out|abort|unhandled|watchdog)/i,
  /\bnccl(?:Unhandled|System|Internal|Remote|InvalidUsage|InvalidArgument)\w*Error\b/,
  /\[E[^\]\n]{0,40}\bProcessGroupNCCL\.cpp/, // an error of its log; it warns of harmless things as well
  /\bWatchdog caught collective operation timeout\b/i,
];

/** Whether a failure's words say that GPUs could not talk to one another. */
export function saysNcclFailed(text: string): boolean {
  return ncclShapes.some((shape) => shape.test(text));
}

export const ncclRemedy =
  'NCCL_P2P_DISABLE=1 in the environment of trainer and servers where their GPUs do not reach each other directly (`nvidia-smi topo -m`), NCCL_IB_DISABLE=1 without InfiniBand, NCCL_DEBUG=INFO to see what it tried; a process of the group that died takes the others with it: look at its log first';

const engineDeadShapes: readonly RegExp[] = [
  /EngineDead\w{0,64}Error\b/, // vLLM's of several versions
  // `pid=` is part of the prefix of every line of its engine's log.
  /\bEngine ?[Cc]ore\w*\b(?! pid=)[^\n.]{0,60}\b(?:died|dead|encountered an issue|hit an exception|initialization failed|failed to start|exited)\b/,
];

/** Whether a server reports that its engine is gone: it answers, but will not sample before a restart. */
export function saysEngineDied(text: string): boolean {
  return engineDeadShapes.some((shape) => shape.test(text));
}

const overlongShapes: readonly RegExp[] = [
  /context_length_exceeded|exceed_context_size|ContextWindowExceeded/,
  /maximum (?:context|prompt|model) length/i, // vLLM, OpenAI, Mistral, xAI
  /longer than the (?:maximum )?(?:model['’]?s? (?:context )?length|context)/i, // SGLang
  /exceeds? (?:the )?(?:model['’]s |available |maximum )?(?:context|sequence)[ -]?(?:length|size|window)/i, // llama.cpp
  /(?:prompt|input) (?:is|was) too long/i, // Anthropic, Bedrock
  /input token count .{0,40}exceeds the maximum/i, // Gemini
  /`?inputs`? tokens \+ `?max_new_tokens`? must be|`?inputs`? must have less than/i, // TGI
  /range of input length should be/i, // DashScope
];

/** Whether a server's refusal says that the prompt is longer than it takes. */
export function saysOverlong(text: string): boolean {
  return overlongShapes.some((shape) => shape.test(text));
}

/** The outcome of a rollout after a failure in generation; null if the failure is not the rollout's own. */
export function outcomeOfFailure(error: unknown): FailedOutcome | null {
  if (error instanceof RatchetError) {
    if (error.code === 'PromptTooLong') return 'overlong_prompt';
    if (error.code === 'OutOfMemory') return 'oom';
    return error.code === 'InferenceRejected' ? 'rejected' : null;
  }
  const text = error instanceof Error ? `${error.name} ${error.message}` : String(error);
  return saysOutOfMemory(text) ? 'oom' : 'infra_failure';
}
