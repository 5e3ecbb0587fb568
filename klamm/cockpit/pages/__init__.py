"""The APIs of the page, one module for each view. `klamm.cockpit.server.PAGES` names the modules that are served."""
