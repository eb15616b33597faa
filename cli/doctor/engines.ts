import { enginePackages } from '../../backends/python/engine-python.ts';
import { findTorchPython } from '../../backends/torch/find-python.ts';
import { RatchetError } from '../../core/errors.ts';
import { sizeOfEngine } from '../../workers/install/engine.ts';
import { gpusHere } from '../../workers/stack/gpus-here.ts';
import { pythonWithVllm } from '../../workers/stack/vllm-role.ts';
import type { Check, Needs } from './machine.ts';

/** PyTorch and vLLM, where this machine has GPUs for them or the run has PyTorch train. */
export async function checkEngines({ trainsByTorch }: Pick<Needs, 'trainsByTorch'>): Promise<Check[]> {
  const hasGpus = (await gpusHere()) > 0;
  if (!hasGpus && !trainsByTorch) return [];
  const torch = await findTorchPython(null, process.cwd()).catch(noPython);
  const checks: Check[] = [engineCheck('torch', torch, trainsByTorch ? 'bad' : 'warn')];
  if (hasGpus) checks.push(engineCheck('vllm', await pythonWithVllm(process.cwd()), 'warn'));
  return checks;
}

function engineCheck(engine: 'torch' | 'vllm', python: string | null, missing: Check['state']): Check {
  const name = engine === 'torch' ? 'PyTorch' : 'vLLM';
  if (python !== null) return { name, state: 'ok', says: python };
  const fix = `npx ratchet-rl engine install ${engine} (${sizeOfEngine(engine)})`;
  return { name, state: missing, says: `no Python here has ${enginePackages[engine].modules.join(', ')}`, fix };
}

function noPython(error: unknown): null {
  if (error instanceof RatchetError) return null;
  throw error;
}
