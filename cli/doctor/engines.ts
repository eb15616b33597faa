import { existsSync } from 'node:fs';
import { enginePackages, modulesLacking } from '../../backends/python/engine-python.ts';
import { findPrimeRlPython } from '../../backends/prime-rl/find-python.ts';
import { findTorchPython } from '../../backends/torch/find-python.ts';
import { RatchetError } from '../../core/errors.ts';
import { sizeOfEngine } from '../../workers/install/engine.ts';
import { gpusHere } from '../../workers/stack/gpus-here.ts';
import { pythonWithVllm } from '../../workers/stack/vllm-role.ts';
import type { RunSpec } from '../../config/run-spec.ts';
import { programObstacles } from '../start/engine-lacks.ts';
import type { Check, Needs } from './machine.ts';

/** PyTorch and vLLM, where this machine has GPUs for them or the run has PyTorch train. */
export async function checkEngines({
  trainsByTorch,
  torchProgram = null,
}: Pick<Needs, 'trainsByTorch' | 'torchProgram'>): Promise<Check[]> {
  const hasGpus = (await gpusHere()) > 0;
  if (!hasGpus && !trainsByTorch) return [];
  const checks: Check[] = [await checkTorch(trainsByTorch, torchProgram)];
  if (hasGpus) checks.push(engineCheck('vllm', await pythonWithVllm(process.cwd()), 'warn'));
  return checks;
}

async function checkTorch(isNeeded: boolean, program: string | null): Promise<Check> {
  if (program === null) {
    const found = await findTorchPython(null, process.cwd()).catch(noPython);
    return engineCheck('torch', found, isNeeded ? 'bad' : 'warn');
  }
  return checkProgram(program, await findTorchPython(program, process.cwd()));
}

/** The Python that a run file names: it is not run, since the file may be somebody else's. */
function checkProgram(program: string, file: string): Check {
  const name = 'PyTorch';
  if (program.includes('/') && !existsSync(file)) {
    const fix = 'name the Python of an environment in [trainer] program';
    return { name, state: 'bad', says: `[trainer] program: ${file} is not there`, fix };
  }
  const { modules } = enginePackages.torch;
  const lacking = program.includes('/') ? modulesLacking(file, modules) : null;
  if (lacking === null) {
    const says = `${file}, named by [trainer] program: whether it has ${modules.join(', ')} is seen when it starts`;
    return { name, state: 'warn', says, fix: `ask it: ${file} -c 'import ${modules.join(', ')}'` };
  }
  if (lacking.length === 0) return { name, state: 'ok', says: `${file} has ${modules.join(', ')}` };
  const fix = `${file} -m pip install ${lacking.join(' ')}`;
  return { name, state: 'bad', says: `${file}, named by [trainer] program, lacks ${lacking.join(', ')}`, fix };
}

function engineCheck(engine: 'torch' | 'vllm', python: string | null, missing: Check['state']): Check {
  const name = engine === 'torch' ? 'PyTorch' : 'vLLM';
  if (python !== null) return { name, state: 'ok', says: python };
  const fix = `npx ratchet-rl engine install ${engine} (${sizeOfEngine(engine)})`;
  return { name, state: missing, says: `no Python here has ${enginePackages[engine].modules.join(', ')}`, fix };
}

/** The Python or the checkout that a run names for its trainer. It is not run, since the file may be somebody else's. */
export async function checkTrainerProgram(spec: Pick<RunSpec, 'trainer'>): Promise<Check[]> {
  const { trainer } = spec;
  if (!('program' in trainer) || trainer.program === null) return [];
  const [missing] = await programObstacles(spec);
  if (!missing && trainer.kind === 'prime-rl') return [notAsked(trainer.program, await findPrimeRlPython(trainer.program, process.cwd()))]; // prettier-ignore
  if (!missing) return [{ name: 'trainer', state: 'ok', says: trainer.program }];
  return [{ name: 'trainer', state: 'bad', says: missing.says, fix: missing.remedies.join('; ') }];
}

function notAsked(program: string, python: string): Check {
  const says = `${program}: whether it has a prime-rl that can be driven is seen when it starts`;
  return { name: 'trainer', state: 'warn', says, fix: `ask it: ${python} -c 'import torch, msgspec, prime_rl'` };
}

function noPython(error: unknown): null {
  if (error instanceof RatchetError) return null;
  throw error;
}
