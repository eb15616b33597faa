import { fileURLToPath } from 'node:url';
import {
  environmentForPython,
  environmentForStore,
  environmentForVerifiers,
  mlflowVariables,
  notifyVariables,
  otlpVariables,
  temporalSecrets,
  tinkerVariables,
  variablesOfEnvironments,
  wandbVariables,
} from '../core/child-environment.ts';
import { workerRoles, type WorkerRole } from '../core/names.ts';
import { choosePort } from './ports.ts';
import type { Role } from './supervisor.ts';
import type { StartedVllm } from './vllm-role.ts';

/** The policy server's usual port; another is chosen when it is taken. */
const usualPolicyPort = 8420;

export interface RoleOptions {
  /** Weights are only loaded from below these folders. */
  readonly weightRoots: readonly string[];
  readonly policyPort: number;
  /** Whether a process follows metrics for TensorBoard, W&B and Prometheus; yes where not said. */
  readonly followsMetrics?: boolean;
  /** Of `/metrics`; the usual one or another when not said. */
  readonly metricsPort?: number | undefined;
  /** Environment variables that workers see beside the usual ones: keys that a run file names. */
  readonly workersSee?: readonly string[];
  /** The vLLM that is started beside them. */
  readonly vllm?: StartedVllm | null;
  /** Which GPU the trainers see (CUDA_VISIBLE_DEVICES); all of them when missing. */
  readonly trainerGpus?: readonly number[] | null;
  /** Processes of a role; one where not said. */
  readonly count?: Partial<Readonly<Record<WorkerRole, number>>>;
  /** How long workers go on with what is under way when they are told to end; hardly at all where not said. */
  readonly graceS?: number | undefined;
  /** Only what plays: other servers have the model, and nothing is trained. */
  readonly playsOnly?: boolean;
}

/** Everything a run needs on one machine: the policy server and one worker of each role, and what follows its metrics. */
export function localRoles({
  weightRoots,
  policyPort,
  followsMetrics = true,
  metricsPort,
  workersSee = [],
  vllm = null,
  trainerGpus = null,
  count = {},
  graceS,
  playsOnly = false,
}: RoleOptions): Role[] {
  const policyUrl = policyUrlAt(policyPort);
  const policyServer: Role = {
    name: 'policy server',
    args: [
      ...programArguments('policy-server'),
      '--host',
      '127.0.0.1',
      '--port',
      String(policyPort),
      '--threads',
      '1',
      ...weightRoots.flatMap((root) => ['--allow-root', root]),
    ],
    dropEnv: temporalSecrets,
    takesSecrets: true,
    // Another program that answers at its port is no sign that it is ready.
    ready: { line: 'policy server listening on' },
  };
  const wanted = workerRoles.filter((role) => !playsOnly || role !== 'train');
  const workers = wanted.flatMap((role): Role[] =>
    Array.from({ length: count[role] ?? 1 }, (_, i) => ({
      name: i === 0 ? `${role} worker` : `${role} worker ${i + 1}`,
      args: [
        ...programArguments('worker'),
        '--role',
        role,
        ...(graceS === undefined ? [] : ['--grace', String(graceS)]),
      ],
      takesSecrets: true,
      ...(role === 'orchestrator' && i === 0 ? { argsAtOwnServer: ['--take-over'], aloud: 'upgrade: ' } : {}),
      passEnv: [
        ...environmentForStore,
        ...tinkerVariables,
        ...workersSee,
        ...environmentForVerifiers,
        ...variablesOfEnvironments(process.env),
      ],
      // Who orchestrates only looks at datasets.
      env: {
        // Where none is started, whoever listens there is a stranger.
        RATCHET_POLICY_URL: playsOnly ? '' : policyUrl,
        ...(vllm ? { RATCHET_VLLM_URL: vllm.url } : {}),
        ...(role === 'orchestrator' ? { RATCHET_PYTHON_CHILDREN: '1' } : {}),
        ...(role === 'train' && trainerGpus ? { CUDA_VISIBLE_DEVICES: trainerGpus.join(',') } : {}),
      },
      ready: { line: `${role} worker ready` },
    })),
  );
  const metrics: Role = {
    name: 'metrics worker',
    args: [...programArguments('worker'), '--role', 'metrics'],
    takesSecrets: true,
    aloud: 'metrics: ',
    passEnv: [
      ...environmentForStore,
      ...wandbVariables,
      ...mlflowVariables,
      ...otlpVariables,
      ...notifyVariables,
      ...environmentForPython,
    ],
    env: metricsPort === undefined ? {} : { RATCHET_METRICS_PORT: String(metricsPort) },
  };
  if (playsOnly) return workers;
  return [policyServer, ...(vllm ? [vllm.role] : []), ...workers, ...(followsMetrics ? [metrics] : [])];
}

export function policyUrlAt(port: number): string {
  return `http://127.0.0.1:${port}`;
}

export async function choosePolicyPort(): Promise<number> {
  return choosePort(usualPolicyPort);
}

/** Arguments of node for one of our programs, by its name in `built.mjs`. */
export function programArguments(name: 'worker' | 'policy-server'): string[] {
  return [fileURLToPath(new URL('./program.mjs', import.meta.url)), name];
}
