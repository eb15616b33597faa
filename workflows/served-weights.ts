import type { BroadcastResult } from '../activities/broadcast-weights.ts';
import { canaryDifferenceMaxInFloat32 } from '../core/limits.ts';
import { namedServers, versionName } from '../core/names.ts';
import type { PolicyVersion, RunHandle } from '../core/rl/run-state.ts';
import type { RunSpec } from '../core/spec/run-spec.ts';
import { orchestratorFor } from './activity-options.ts';
import type { RunDesk } from './run-desk.ts';
import type { ServerTurns } from './server-turns.ts';

interface Options {
  readonly run: RunHandle;
  readonly spec: RunSpec;
  readonly desk: RunDesk;
  readonly turns: ServerTurns;
  /** Told when servers hold a version. */
  readonly onServed: (policy: PolicyVersion) => void;
}

/** Versions on their way to the inference servers, and what their canaries said. */
export class ServedWeights {
  readonly #options: Options;
  readonly #servers: string;
  #newest: BroadcastResult | null = null;

  constructor(options: Options) {
    this.#options = options;
    this.#servers = namedServers(options.spec.inference) ?? 'the policy servers';
  }

  /** Figures of the newest broadcast, for the metrics of the step after it; none before the first canary. */
  figures(): Record<string, number> {
    const { canaryDifference = null, aside = [] } = this.#newest ?? {};
    if (canaryDifference === null) return {};
    return { 'inference/canary_difference': canaryDifference, 'inference/servers_aside': aside.length };
  }

  /**
   * Brings the servers to a version. Those that sample from other weights are asked for nothing of it; where that are all of them
   * the run pauses, and they are asked again once it is resumed.
   */
  async bring(policy: PolicyVersion): Promise<void> {
    const { desk, onServed } = this.#options;
    for (;;) {
      const result = await this.#broadcast(policy);
      this.#newest = result;
      onServed(policy);
      this.#tell(policy, result);
      if (!isHopeless(result)) return;
      desk.pause(this.#why(policy, result));
      await desk.untilResumed(); // nothing is sampled there until then
    }
  }

  #broadcast(policy: PolicyVersion): Promise<BroadcastResult> {
    const { run, spec, desk, turns } = this.#options;
    const summary = `${versionName(policy)} to ${this.#servers}`;
    const orchestrator = orchestratorFor(spec);
    const send = () => orchestrator.broadcastWeights.executeWithOptions({ summary }, [{ run, policy }]);
    // Where servers sample from one version, the round under way has it to its end: else they are loaded back and forth.
    const holdOne = this.#newest?.holdsOne === true;
    return desk.waitFor(`broadcast ${summary}`, holdOne ? turns.changing(send) : turns.shared(send));
  }

  #tell(policy: PolicyVersion, { aside = [], reloaded = [], threshold, isNoneLeft }: BroadcastResult): void {
    const { desk } = this.#options;
    const version = versionName(policy);
    for (const { server, difference } of reloaded) {
      desk.tell(
        'warning',
        policy.step,
        `canary: ${server} sampled from other weights than ${version}; given them again it agrees (${difference.toExponential(1)})`,
      );
    }
    desk.progress.serversAside = aside.map(({ server }) => server);
    if (isNoneLeft) return;
    for (const { server, difference } of aside) {
      desk.tell(
        'warning',
        policy.step,
        `canary: ${server} is put aside: its logprobs of ${version} are ${difference.toExponential(1)} off the trainer's, expected ${threshold} at most; the others go on`,
        { server, difference },
      );
    }
  }

  #why(policy: PolicyVersion, { canaryDifference, threshold = canaryDifferenceMaxInFloat32 }: BroadcastResult): string {
    return `canary: the logprobs of ${versionName(policy)} at ${this.#servers} are ${(canaryDifference ?? NaN).toExponential(1)} off the trainer's, expected ${threshold} at most. It samples from other weights than are trained: restart it, or look at its log; then resume, and it is asked again. Where that is the precision of its arithmetic, [inference] canary_threshold says what may be.`;
  }
}

/** A history of before each server had a verdict has one for all of them. */
function isHopeless({ canaryDifference, threshold, isNoneLeft }: BroadcastResult): boolean {
  if (threshold !== undefined) return isNoneLeft === true;
  return canaryDifference !== null && !(canaryDifference <= canaryDifferenceMaxInFloat32);
}
