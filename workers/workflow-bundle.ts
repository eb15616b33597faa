import { createHash, randomUUID } from 'node:crypto';
import { existsSync } from 'node:fs';
import { mkdir, readFile, rename, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import {
  bundleWorkflowCode,
  type BundleOptions,
  DefaultLogger,
  type WorkflowBundleWithSourceMap,
} from '@temporalio/worker';
import { build } from 'esbuild';
import { present } from '../core/present.ts';
import { cacheFolder } from '../engine/cache-folder.ts';
import { failureConverterPath } from './payload-codec.ts';

const root = fileURLToPath(new URL('../', import.meta.url));
const extension = path.extname(import.meta.url);

/** Modules of the workflow bundle: the workflows' code, and the converter that decodes their payloads. */
const workflowModules = {
  workflowsPath: path.join(root, 'workflows', `index${extension}`),
  payloadConverterPath: path.join(root, 'workflows', `payload-converter${extension}`),
};

/**
 * The workflows as one file, made once per version (`workflowCodeVersion`) and kept in the per-user cache: bundling takes a
 * second or two, and a killed orchestrator is wanted back sooner. `isEncrypted`: failures are made so that a codec can encrypt them.
 */
export async function workflowBundlePath(version: string, { isEncrypted = false } = {}): Promise<string> {
  const folder = path.join(cacheFolder(), 'workflow-bundles');
  const file = path.join(folder, `${version}-node${process.versions.node}${isEncrypted ? '-encrypted' : ''}.js`);
  if (existsSync(file)) return file;
  const { code } = await bundleWorkflows({ isEncrypted });
  await mkdir(folder, { recursive: true, mode: 0o700 });
  const temporary = `${file}.${randomUUID()}`;
  await writeFile(temporary, code);
  await rename(temporary, file);
  return file;
}

/** Bundles the workflows. The compiler unpacks itself into a cache, which by default is its own folder in the user's home. */
export function bundleWorkflows({ isEncrypted = false } = {}): Promise<WorkflowBundleWithSourceMap> {
  process.env['SWC_NATIVE_BINDING_CACHE'] ??= path.resolve(cacheFolder(), 'swc');
  return bundleWorkflowCode({
    ...workflowModules,
    logger: new DefaultLogger('WARN'),
    webpackConfigHook: compileInstalled,
    ...(isEncrypted ? { failureConverterPath } : {}),
  });
}

/** Temporal's bundler compiles no TypeScript below a node_modules, where an installed Ratchet lies. */
function compileInstalled(config: WebpackConfig): WebpackConfig {
  const isOfPackage = (file: string) => path.relative(root, file).split(path.sep).includes('node_modules');
  const rules = config.module?.rules?.map((rule) =>
    typeof rule === 'object' && rule?.exclude !== undefined ? { ...rule, exclude: isOfPackage } : rule,
  );
  return { ...config, module: { ...config.module, ...present({ rules }) } };
}

type WebpackConfig = Parameters<NonNullable<BundleOptions['webpackConfigHook']>>[0];

/**
 * A digest of what the workflow bundle is made of and of nothing else: the workflows' own code with what they import of other rooms, as
 * esbuild puts it together (comments, types and functions that no workflow calls are not in it), and the packages that they import, at
 * their locked versions. So it is the same wherever Ratchet lies, and stays when a dialect, a message of a command or the engine changes.
 * A history that was written under another version need not replay. `folder`: of another copy of Ratchet.
 */
export async function workflowCodeVersion(folder = root): Promise<string> {
  const { outputFiles, metafile } = await build({
    absWorkingDir: path.resolve(folder),
    entryPoints: [`workflows/index${extension}`],
    bundle: true,
    write: false,
    metafile: true,
    format: 'esm',
    packages: 'external',
    treeShaking: true,
    minifySyntax: true,
    minifyWhitespace: true,
    legalComments: 'none',
    logLevel: 'silent',
  });
  const imports = Object.values(metafile.outputs).flatMap((output) => output.imports.map((one) => one.path));
  const lock = JSON.parse(await readFile(path.join(folder, 'npm-shrinkwrap.json'), 'utf8')) as PackageLock;
  const hash = createHash('sha256');
  for (const { contents } of outputFiles) hash.update(contents);
  for (const line of lockedPackages(lock, imports)) hash.update(`${line}\n`);
  return hash.digest('hex').slice(0, 32);
}

interface PackageLock {
  readonly packages: Readonly<
    Record<string, { readonly version?: string; readonly dependencies?: Readonly<Record<string, string>> }>
  >;
}

/** Packages with what they depend on in turn, each with its version, in order. */
function lockedPackages({ packages }: PackageLock, imports: readonly string[]): string[] {
  const found = new Map<string, string>();
  const visit = (name: string, from: string): void => {
    const place = placeOf(name, from, packages);
    if (place === null || found.has(place)) return;
    const { version = '', dependencies = {} } = packages[place]!;
    found.set(place, version);
    for (const dependency of Object.keys(dependencies)) visit(dependency, place);
  };
  for (const specifier of imports) visit(packageOf(specifier), '');
  return [...found].map(([place, version]) => `${place} ${version}`).sort();
}

/** Where Node finds a package for another one: in its own node_modules, or in those of the folders above. */
function placeOf(name: string, from: string, packages: PackageLock['packages']): string | null {
  for (let at = from; ; at = at.includes('/node_modules/') ? at.slice(0, at.lastIndexOf('/node_modules/')) : '') {
    const place = at === '' ? `node_modules/${name}` : `${at}/node_modules/${name}`;
    if (place in packages) return place;
    if (at === '') return null;
  }
}

function packageOf(specifier: string): string {
  return specifier
    .split('/')
    .slice(0, specifier.startsWith('@') ? 2 : 1)
    .join('/');
}
