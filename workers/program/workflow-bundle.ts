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
import { present } from '../../core/present.ts';
import { cacheFolder } from '../../host/cache-folder.ts';
import { failureConverterPath } from '../temporal/payload-codec.ts';

const root = fileURLToPath(new URL('../../', import.meta.url));
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

/** Bundles the workflows. The compiler unpacks itself into a cache, by default a folder in the user's home. */
export function bundleWorkflows({ isEncrypted = false } = {}): Promise<WorkflowBundleWithSourceMap> {
  process.env['SWC_NATIVE_BINDING_CACHE'] ??= path.resolve(cacheFolder(), 'swc');
  return bundleWorkflowCode({
    ...workflowModules,
    logger: new DefaultLogger('WARN'),
    webpackConfigHook: compileInstalled,
    ...(isEncrypted ? { failureConverterPath } : {}),
  });
}

/** Temporal's bundler compiles no TypeScript below a node_modules, which is where an installed Ratchet is. */
function compileInstalled(config: WebpackConfig): WebpackConfig {
  const isOfPackage = (file: string) => path.relative(root, file).split(path.sep).includes('node_modules');
  const rules = config.module?.rules?.map((rule) =>
    typeof rule === 'object' && rule?.exclude !== undefined ? { ...rule, exclude: isOfPackage } : rule,
  );
  return { ...config, module: { ...config.module, ...present({ rules }) } };
}

type WebpackConfig = Parameters<NonNullable<BundleOptions['webpackConfigHook']>>[0];

/**
 * Digest of exactly the contents of the workflow bundle: the workflows' code with its imports from other rooms, as
 * esbuild combines them (without comments, types and functions that no workflow calls), and the packages they import,
 * at their locked versions. So it does not depend on Ratchet's folder, and stays the same when a dialect, a command's
 * message or the engine changes. Histories written under another version need not replay. `folder`: of another copy of
 * Ratchet.
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

/** Packages and their dependencies, recursively, each with its version, in order. */
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

/** Resolves a package as Node does: in the importing package's node_modules, then in those of the folders above. */
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
