import { fileURLToPath } from 'node:url';
import { ensureEngine, type Installed } from './install.ts';

const lock = fileURLToPath(new URL('../../python/torch-requirements.lock', import.meta.url));

/** A Python with the trainer's locked packages. PyPI's build of PyTorch for Linux brings CUDA along, and computes on CPUs as well. */
export function ensureTorch(): Promise<Installed> {
  return ensureEngine({
    name: 'torch-2.15.0',
    variable: 'RATCHET_TORCH_PYTHON',
    packages: ['--require-hashes', '-r', lock],
    diskBytes: 12e9,
    memoryBytes: 3e9,
  });
}
