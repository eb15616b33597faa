import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { environmentForAll, environmentForVerifiers, selectEnvironment } from '../../core/child-environment.ts';

/** `python -m ratchet_prime_rl.look` finds itself here, and ranks the objective. */
const pythonFolder = fileURLToPath(new URL('../../python/', import.meta.url)).replace(/\/$/, '');

/** Variables by which prime-rl and its libraries know where and how to compute. */
const environmentForTrainer = [
  'TORCH*',
  'PYTORCH_*',
  'NCCL_*',
  'GLOO_*',
  'TRITON_*',
  'MKL_*',
  'KMP_*',
  'CUDA*',
  'PRIME_LOG_*',
];

/** Names further variables that prime-rl’s processes see, separated by commas or spaces. */
export const furtherVariables = 'RATCHET_PRIME_RL_VARIABLES';

export function pythonEnvironment(environment: Readonly<NodeJS.ProcessEnv> = process.env): Record<string, string> {
  const further = (environment[furtherVariables] ?? '').split(/[\s,]+/).filter((name) => name !== '');
  const { PYTHONPATH: inherited, ...seen } = selectEnvironment(
    [...environmentForAll, ...environmentForVerifiers, ...environmentForTrainer, ...further],
    environment,
  );
  return {
    ...seen,
    // The folder that a trainer works in holds data alone.
    PYTHONSAFEPATH: '1',
    TOKENIZERS_PARALLELISM: 'false',
    PYTHONPATH: [pythonFolder, inherited].filter(Boolean).join(path.delimiter),
  };
}
