import { inferenceTraits } from '../../core/kinds/inference.ts';
import type { WorkerRole } from '../../core/names.ts';
import { openInference, type Inference } from '../../backends/inference/index.ts';
import type { RunSpec } from '../../config/run-spec.ts';
import type { JoinedPool } from './joined-pool.ts';
import type { LoadTarget } from './load-slots.ts';
import type { Credentials } from '../temporal/credentials.ts';

export interface WorkerSettings extends Credentials {
  readonly role: WorkerRole;
  readonly projectFolder: string;
  /** How long work under way may continue at shutdown; unfinished work is repeated by another worker. */
  readonly graceMs?: number;
  /** Rollouts that a rollout worker generates at once; by default as many as fit into its memory. */
  readonly maxRollouts?: number;
  /** Load of the machine up to which an orchestrator or rollout worker takes more work; missing = whatever the load. */
  readonly loadTarget?: LoadTarget;
  /** The pool that it joins; missing = it works for runs of no pool. */
  readonly joined?: JoinedPool | undefined;
  /** The policy server that a run uses when its config names none. */
  readonly policyUrl: string;
  /** The same for vLLM, '' when none was started; missing = none. */
  readonly vllmUrl?: string;
  /** Set on the server's only orchestrator: restarts runs of other workflow code, with a line for each. */
  readonly onTakeOver?: ((line: string) => void) | undefined;
}

export function say(line: string): void {
  process.stderr.write(`${line}\n`);
}

/** One pool per set of servers: calls of all activities of this process travel together. */
export function inferenceFor({ policyUrl, vllmUrl = '' }: WorkerSettings): (spec: RunSpec) => Inference {
  const opened = new Map<string, Inference>();
  return (spec) => {
    const key = JSON.stringify(spec.inference);
    const known =
      opened.get(key) ??
      openInference(spec.inference, inferenceTraits(spec.inference).starts === 'vllm' ? vllmUrl : policyUrl, say);
    opened.set(key, known);
    return known;
  };
}
