let reading: Promise<void> | null = null;

/**
 * From now on this process reads TypeScript: files that a user wrote. From source it does already; the program as built (`workers/built.mjs`)
 * does without the loader until it meets the first of them.
 */
export function readTypeScript(): Promise<void> {
  // A bundle is no TypeScript source and brings no loader.
  const isSource = import.meta.filename.endsWith('.ts');
  return (reading ??= isSource ? Promise.resolve() : registerLoader());
}

/** Registers both loaders: a file is CommonJS unless a package.json says otherwise. */
async function registerLoader(): Promise<void> {
  const [forRequire, forImport] = [await import('tsx/cjs/api'), await import('tsx/esm/api')];
  forRequire.register();
  forImport.register();
}
