import type { WorkerRole } from '../core/names.ts';
import { openInference, type Inference } from '../backends/inference/index.ts';
import type { RunSpec } from '../config/run-spec.ts';
import type { Credentials } from './credentials.ts';

export interface WorkerSettings extends Credentials {
  readonly role: WorkerRole;
  readonly projectFolder: string;
  /** How long what is under way may go on when the worker is told to end; what has not ended then is done again elsewhere. */
  readonly graceMs?: number;
  /** Rollouts that a rollout worker plays at once; as many as fit into its memory where it is not said. */
  readonly maxRollouts?: number;
  /** The policy server that a run uses when its config names none. */
  readonly policyUrl: string;
  /** The same of vLLM, '' where none was started; missing = none. */
  readonly vllmUrl?: string;
  /** Set where this is the server's only orchestrator: runs of other workflow code are started anew, and it is told. */
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
      opened.get(key) ?? openInference(spec.inference, spec.inference.kind === 'vllm' ? vllmUrl : policyUrl, say);
    opened.set(key, known);
    return known;
  };
}
